// Opens cuBLASLt where the dynamic linker, the CUDA toolkit or the wheel nvidia-cublas has it.
#include "ops/cuda/matmul/cublaslt_library.h"

#include <filesystem>
#include <string>

#include <dlfcn.h>

#include "core/error.h"

namespace sluice::cuda {
namespace {

// Where pip puts the wheel nvidia-cublas if this code is in site-packages/sluice. Empty otherwise;
// a program may know itself by a relative path only, and that would be one into the current folder.
std::string path_in_wheel(const std::string& name) {
  Dl_info own = {};
  if (dladdr(reinterpret_cast<const void*>(&cublaslt), &own) == 0) return {};
  const std::filesystem::path package = std::filesystem::path(own.dli_fname).parent_path();
  if (!package.is_absolute() || package.filename() != "sluice") return {};
  const std::string folder = fmt::format("nvidia/cu{}/lib", CUBLAS_VER_MAJOR);
  return (package.parent_path() / folder / name).string();
}

// Opens the version that the headers belong to. Never closed: its kernels stay loaded until the
// process ends.
void* open_library() {
  const std::string name = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
  std::string error;
  for (const std::string& path : {name, "/usr/local/cuda/lib64/" + name, path_in_wheel(name)}) {
    if (path.empty()) continue;  // which dlopen takes for the program itself
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
