// The stand-in for libcublas.so.13: what PyTorch calls to multiply, from the public headers. Everything else that it
// may ask for is a generated stub.
#include <cublas_v2.h>

#include <algorithm>
#include <cstdlib>
#include <new>

#include "tests/frameworks/standins/product.hpp"
#include "tests/simgpu/simgpu.h"

#define STANDIN_EXPORT extern "C" __attribute__((visibility("default")))

struct cublasContext {
  cudaStream_t stream = nullptr;
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
  cublasMath_t math = CUBLAS_DEFAULT_MATH;
  cublasPointerMode_t pointer_mode = CUBLAS_POINTER_MODE_HOST;
};

namespace {

using namespace hmshim::frameworks;

cublasStatus_t from(CUresult result) {
  return result == CUDA_SUCCESS ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

struct Shape {
  cublasOperation_t a;
  cublasOperation_t b;
  std::uint64_t m;
  std::uint64_t n;
  std::uint64_t k;
};

// C = A B. `a`, `b` and `c` come with address, type, leading dimension and stride.
cublasStatus_t multiply(cublasHandle_t handle, const Shape& shape, Matrix a, Matrix b, Matrix c, std::uint64_t count) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (shape.m == 0 || shape.n == 0 || count == 0) return CUBLAS_STATUS_SUCCESS;
  const auto fill = [count](Matrix& matrix, bool is_plain, std::uint64_t rows, std::uint64_t columns) {
    matrix.rows = is_plain ? rows : columns;
    matrix.columns = is_plain ? columns : rows;
    matrix.count = count;
  };
  fill(a, shape.a == CUBLAS_OP_N, shape.m, shape.k);
  fill(b, shape.b == CUBLAS_OP_N, shape.k, shape.n);
  fill(c, true, shape.m, shape.n);
  // Partial sums, of which no kernel has more than C has elements at a time.
  const std::uint64_t sums_bytes = std::min<std::uint64_t>(handle->workspace_bytes, shape.m * shape.n * 4);
  return from(launch_product(handle->stream,
                             {reads(a), reads(b), updates(c), vector(handle->workspace, sums_bytes, SIMGPU_READ_WRITE)},
                             2 * shape.m * shape.n * shape.k * count, a.type));
}

// y = A x, or A's rank-one relatives: a matrix of which every element is used once.
cublasStatus_t multiply_vector(cublasHandle_t handle, const Matrix& a, const void* x, std::uint64_t x_elements,
                               const void* y, std::uint64_t y_elements) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  const std::size_t bytes = element_bytes(a.type);
  return from(launch_product(
      handle->stream,
      {reads(a), vector(x, x_elements * bytes, SIMGPU_READ), vector(y, y_elements * bytes, SIMGPU_READ_WRITE)},
      2 * a.rows * a.columns, a.type));
}

std::uint64_t spread(int elements, int increment) {
  if (elements <= 0) return 0;
  return static_cast<std::uint64_t>(elements - 1) * static_cast<std::uint64_t>(std::abs(increment)) + 1;
}

// A result on the host is what it was: the device computes nothing.
cublasStatus_t dot(cublasHandle_t handle, int n, const void* x, int x_increment, const void* y, int y_increment,
                   void* result, cudaDataType type) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  const std::size_t bytes = element_bytes(type);
  const bool on_device = handle->pointer_mode == CUBLAS_POINTER_MODE_DEVICE;
  return from(launch_product(
      handle->stream,
      {vector(x, spread(n, x_increment) * bytes, SIMGPU_READ), vector(y, spread(n, y_increment) * bytes, SIMGPU_READ),
       vector(on_device ? result : nullptr, on_device ? bytes : 0, SIMGPU_WRITE)},
      2 * static_cast<std::uint64_t>(std::max(n, 0)), type));
}

}  // namespace

STANDIN_EXPORT cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  if (handle == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  *handle = new (std::nothrow) cublasContext;
  return *handle == nullptr ? CUBLAS_STATUS_ALLOC_FAILED : CUBLAS_STATUS_SUCCESS;
}
STANDIN_EXPORT cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
STANDIN_EXPORT cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  handle->stream = stream;
  // "resets the cuBLAS library workspace to the default" (cuBLAS, cublasSetStream), which is the library's own.
  handle->workspace = nullptr;
  handle->workspace_bytes = 0;
  return CUBLAS_STATUS_SUCCESS;
}
STANDIN_EXPORT cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void* workspace, std::size_t bytes) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  handle->workspace = workspace;
  handle->workspace_bytes = bytes;
  return CUBLAS_STATUS_SUCCESS;
}
STANDIN_EXPORT cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t* mode) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  *mode = handle->math;
  return CUBLAS_STATUS_SUCCESS;
}
STANDIN_EXPORT cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  handle->math = mode;
  return CUBLAS_STATUS_SUCCESS;
}
STANDIN_EXPORT cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t* mode) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  *mode = handle->pointer_mode;
  return CUBLAS_STATUS_SUCCESS;
}
STANDIN_EXPORT cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  handle->pointer_mode = mode;
  return CUBLAS_STATUS_SUCCESS;
}

STANDIN_EXPORT cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb,
                                           int m, int n, int k, const void*, const void* a, cudaDataType a_type,
                                           int lda, const void* b, cudaDataType b_type, int ldb, const void*, void* c,
                                           cudaDataType c_type, int ldc, cublasComputeType_t, cublasGemmAlgo_t) {
  return multiply(handle, Shape{transa, transb, std::uint64_t(m), std::uint64_t(n), std::uint64_t(k)},
                  {.address = a, .type = a_type, .leading = lda}, {.address = b, .type = b_type, .leading = ldb},
                  {.address = c, .type = c_type, .leading = ldc}, 1);
}
STANDIN_EXPORT cublasStatus_t cublasSgemmEx(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb,
                                            int m, int n, int k, const float* alpha, const void* a, cudaDataType a_type,
                                            int lda, const void* b, cudaDataType b_type, int ldb, const float* beta,
                                            void* c, cudaDataType c_type, int ldc) {
  return cublasGemmEx(handle, transa, transb, m, n, k, alpha, a, a_type, lda, b, b_type, ldb, beta, c, c_type, ldc,
                      CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
}
STANDIN_EXPORT cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t transa,
                                                         cublasOperation_t transb, int m, int n, int k, const void*,
                                                         const void* a, cudaDataType a_type, int lda,
                                                         long long stride_a, const void* b, cudaDataType b_type,
                                                         int ldb, long long stride_b, const void*, void* c,
                                                         cudaDataType c_type, int ldc, long long stride_c, int count,
                                                         cublasComputeType_t, cublasGemmAlgo_t) {
  return multiply(handle, Shape{transa, transb, std::uint64_t(m), std::uint64_t(n), std::uint64_t(k)},
                  {.address = a, .type = a_type, .leading = lda, .stride = stride_a},
                  {.address = b, .type = b_type, .leading = ldb, .stride = stride_b},
                  {.address = c, .type = c_type, .leading = ldc, .stride = stride_c}, std::uint64_t(count));
}
STANDIN_EXPORT cublasStatus_t cublasDotEx(cublasHandle_t handle, int n, const void* x, cudaDataType type,
                                          int x_increment, const void* y, cudaDataType, int y_increment, void* result,
                                          cudaDataType, cudaDataType) {
  return dot(handle, n, x, x_increment, y, y_increment, result, type);
}

#define STANDIN_TYPED(letter, element, data_type)                                                                  \
  STANDIN_EXPORT cublasStatus_t cublas##letter##gemm_v2(                                                           \
      cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k,              \
      const element* alpha, const element* a, int lda, const element* b, int ldb, const element* beta, element* c, \
      int ldc) {                                                                                                   \
    return cublasGemmEx(handle, transa, transb, m, n, k, alpha, a, data_type, lda, b, data_type, ldb, beta, c,     \
                        data_type, ldc, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);                                  \
  }                                                                                                                \
  STANDIN_EXPORT cublasStatus_t cublas##letter##gemmStridedBatched(                                                \
      cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k,              \
      const element* alpha, const element* a, int lda, long long stride_a, const element* b, int ldb,              \
      long long stride_b, const element* beta, element* c, int ldc, long long stride_c, int count) {               \
    return cublasGemmStridedBatchedEx(handle, transa, transb, m, n, k, alpha, a, data_type, lda, stride_a, b,      \
                                      data_type, ldb, stride_b, beta, c, data_type, ldc, stride_c, count,          \
                                      CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);                                    \
  }                                                                                                                \
  STANDIN_EXPORT cublasStatus_t cublas##letter##gemv_v2(                                                           \
      cublasHandle_t handle, cublasOperation_t trans, int m, int n, const element*, const element* a, int lda,     \
      const element* x, int x_increment, const element*, element* y, int y_increment) {                            \
    const bool is_plain = trans == CUBLAS_OP_N;                                                                    \
    const Matrix matrix{                                                                                           \
        .address = a, .type = data_type, .rows = std::uint64_t(m), .columns = std::uint64_t(n), .leading = lda};   \
    return multiply_vector(handle, matrix, x, spread(is_plain ? n : m, x_increment), y,                            \
                           spread(is_plain ? m : n, y_increment));                                                 \
  }
STANDIN_TYPED(S, float, CUDA_R_32F)
STANDIN_TYPED(D, double, CUDA_R_64F)
STANDIN_TYPED(C, cuComplex, CUDA_C_32F)
STANDIN_TYPED(Z, cuDoubleComplex, CUDA_C_64F)
#undef STANDIN_TYPED

#define STANDIN_DOT(name, element, data_type)                                                         \
  STANDIN_EXPORT cublasStatus_t name(cublasHandle_t handle, int n, const element* x, int x_increment, \
                                     const element* y, int y_increment, element* result) {            \
    return dot(handle, n, x, x_increment, y, y_increment, result, data_type);                         \
  }
STANDIN_DOT(cublasSdot_v2, float, CUDA_R_32F)
STANDIN_DOT(cublasDdot_v2, double, CUDA_R_64F)
STANDIN_DOT(cublasCdotc_v2, cuComplex, CUDA_C_32F)
STANDIN_DOT(cublasCdotu_v2, cuComplex, CUDA_C_32F)
STANDIN_DOT(cublasZdotc_v2, cuDoubleComplex, CUDA_C_64F)
STANDIN_DOT(cublasZdotu_v2, cuDoubleComplex, CUDA_C_64F)
#undef STANDIN_DOT
