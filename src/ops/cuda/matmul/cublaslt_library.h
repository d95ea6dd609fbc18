// The functions of cuBLASLt that Sluice calls, found when the first matrix product needs them.
//
// Opened at run time: linked in statically the library adds hundreds of megabytes to every program,
// and linked as a shared one it keeps a program from starting where it is not installed. Used by
// cublaslt_matmul.cc only. Thread rule: any thread; a call costs a test of a flag.
#pragma once

#include <cublasLt.h>

namespace sluice::cuda {

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

// Errors: kUnsupported naming the library and what to do, when it is not there.
const CublasLtLibrary& cublaslt();

// Errors: kDevice naming `call` and the status, unless it is CUBLAS_STATUS_SUCCESS.
void check_cublaslt(cublasStatus_t status, const char* call);

}  // namespace sluice::cuda
