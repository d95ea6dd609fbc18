// A program that only owns precompiled headers (sluice_test_headers).
int main() {}
