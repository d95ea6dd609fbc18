// The functions of cuBLASLt that Sluice calls, loaded when the first matrix product needs them.
//
// Opened at run time: linked in statically the library adds hundreds of megabytes to every program,
// and linked as a shared one it keeps a program from starting where it is not installed. Used by
// cublaslt_matmul.cc only. Thread rule: any thread; a call costs a test of a flag.
#pragma once

#include <cublasLt.h>

namespace sluice::cuda {

// One pointer per function; none is null.
struct CublasLtLibrary {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtGetStatusString) status_string;
  decltype(&cublasLtMatmulDescCreate) desc_create;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set;
  decltype(&cublasLtMatrixLayoutCreate) layout_create;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&cublasLtMatmulAlgoCheck) algo_check;
  decltype(&cublasLtMatmul) matmul;
};

// Opens the library on the first call. Errors: throws kUnsupported, which names the library and the
// remedy, if it cannot be opened or lacks a function.
const CublasLtLibrary& cublaslt();

// Errors: throws kDevice, which names `call` and the status, unless it is CUBLAS_STATUS_SUCCESS.
void check_cublaslt(cublasStatus_t status, const char* call);

}  // namespace sluice::cuda
