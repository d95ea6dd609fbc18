// Opens cuBLASLt where the dynamic linker, the CUDA toolkit or the wheel nvidia-cublas has it.
#include "ops/cuda/matmul/cublaslt_library.h"

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include <dlfcn.h>

#include "core/error.h"

namespace sluice::cuda {
namespace {

namespace fs = std::filesystem;

// The folders site-packages where pip may have put the wheel nvidia-cublas beside this code: of the
// module in site-packages/sluice, or of the program in bin, whose own path may be relative.
std::vector<fs::path> package_folders() {
  Dl_info own = {};
  if (dladdr(reinterpret_cast<const void*>(&cublaslt), &own) == 0) return {};
  const fs::path package = fs::path(own.dli_fname).parent_path();
  if (package.is_absolute() && package.filename() == "sluice") return {package.parent_path()};
  std::error_code absent;
  const fs::path programs = fs::read_symlink("/proc/self/exe", absent).parent_path();
  if (programs.filename() != "bin") return {};
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(programs.parent_path() / "lib", absent)) {
    if (!entry.path().filename().string().starts_with("python3")) continue;
    found.push_back(entry.path() / "site-packages");
  }
  return found;
}

std::vector<std::string> paths_of(const std::string& name) {
  std::vector<std::string> paths = {name, "/usr/local/cuda/lib64/" + name};
  for (const fs::path& packages : package_folders()) {
    paths.push_back(packages / fmt::format("nvidia/cu{}/lib", CUBLAS_VER_MAJOR) / name);
  }
  return paths;
}

// Opens the version that the headers belong to. Never closed: its kernels stay loaded until the
// process ends.
void* open_library() {
  const std::string name = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
  std::string error;
  for (const std::string& path : paths_of(name)) {
    if (void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    if (error.empty()) error = dlerror();  // of the linker's search, which says most
  }
  fail(ErrorCode::kUnsupported,
       "matrix products on the GPU need {}, which cannot be opened ({}); install cuBLAS {} (for "
       "Python: sluice-llm[cuda]) or add its folder to LD_LIBRARY_PATH",
       name, error, CUBLAS_VER_MAJOR);
}

// Sets `function`, or throws kUnsupported for a library that is too old.
template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) {
    fail(ErrorCode::kUnsupported, "libcublasLt.so.{} has no function {}; install cuBLAS {}.{}",
         CUBLAS_VER_MAJOR, name, CUBLAS_VER_MAJOR, CUBLAS_VER_MINOR);
  }
}

CublasLtLibrary load() {
  void* library = open_library();
  CublasLtLibrary table = {};
  find(library, "cublasLtCreate", table.create);
  find(library, "cublasLtDestroy", table.destroy);
  find(library, "cublasLtGetStatusString", table.status_string);
  find(library, "cublasLtMatmulDescCreate", table.desc_create);
  find(library, "cublasLtMatmulDescDestroy", table.desc_destroy);
  find(library, "cublasLtMatmulDescSetAttribute", table.desc_set);
  find(library, "cublasLtMatrixLayoutCreate", table.layout_create);
  find(library, "cublasLtMatrixLayoutDestroy", table.layout_destroy);
  find(library, "cublasLtMatmulPreferenceCreate", table.preference_create);
  find(library, "cublasLtMatmulPreferenceDestroy", table.preference_destroy);
  find(library, "cublasLtMatmulPreferenceSetAttribute", table.preference_set);
  find(library, "cublasLtMatmulAlgoGetHeuristic", table.heuristic);
  find(library, "cublasLtMatmulAlgoCheck", table.algo_check);
  find(library, "cublasLtMatmul", table.matmul);
  return table;
}

}  // namespace

const CublasLtLibrary& cublaslt() {
  static const CublasLtLibrary table = load();
  return table;
}

void check_cublaslt(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  fail(ErrorCode::kDevice, "{} failed: {}", call, cublaslt().status_string(status));
}

}  // namespace sluice::cuda
