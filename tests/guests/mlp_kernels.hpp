#pragma once
// The arithmetic of mlp.cu, once, for the device and for the host (where the simulated GPU runs it: mlp_kernels.cpp).
//
// A body computes Lanes neighbouring elements of its result. A device thread takes one lane; the host takes as many as
// fill its vector registers. Lanes never meet, and within a lane the order of additions is the same, so the number of
// lanes does not change a bit of the result. Nothing here is atomic: a run can be compared with another byte for byte.
#include <cmath>
#include <cstddef>

#ifdef __CUDACC__
#define MLP_BODY __host__ __device__ inline
#else
#define MLP_BODY inline
#endif

namespace mlp {

/// A fully connected layer for a batch: in is [batch][inputs], weight [inputs][outputs], out [batch][outputs].
struct Shape {
  int batch;
  int inputs;
  int outputs;
};

struct AdamStep {
  float learning_rate;  ///< with both bias corrections of this step folded in
  float beta1;
  float beta2;
  float epsilon;
};

MLP_BODY std::size_t at(int row, int columns, int column) {
  return static_cast<std::size_t>(row) * static_cast<std::size_t>(columns) + static_cast<std::size_t>(column);
}

/// out[row][column ...] = bias + in · weight
template <int Lanes>
MLP_BODY void linear_forward(float* __restrict__ out, const float* __restrict__ in, const float* __restrict__ weight,
                             const float* __restrict__ bias, Shape shape, int row, int column) {
  float sum[Lanes];
  for (int lane = 0; lane < Lanes; ++lane) sum[lane] = bias[column + lane];
  for (int input = 0; input < shape.inputs; ++input) {
    const float value = in[at(row, shape.inputs, input)];
    const float* weights = weight + at(input, shape.outputs, column);
    for (int lane = 0; lane < Lanes; ++lane) sum[lane] += value * weights[lane];
  }
  for (int lane = 0; lane < Lanes; ++lane) out[at(row, shape.outputs, column + lane)] = sum[lane];
}

/// in_grad[row][input ...] = out_grad · weight, transposed
template <int Lanes>
MLP_BODY void linear_backward_input(float* __restrict__ in_grad, const float* __restrict__ out_grad,
                                    const float* __restrict__ weight, Shape shape, int row, int input) {
  float sum[Lanes] = {};
  for (int column = 0; column < shape.outputs; ++column) {
    const float grad = out_grad[at(row, shape.outputs, column)];
    for (int lane = 0; lane < Lanes; ++lane) sum[lane] += grad * weight[at(input + lane, shape.outputs, column)];
  }
  for (int lane = 0; lane < Lanes; ++lane) in_grad[at(row, shape.inputs, input + lane)] = sum[lane];
}

/// weight_grad[input][column ...] = in, transposed · out_grad
template <int Lanes>
MLP_BODY void linear_backward_weight(float* __restrict__ weight_grad, const float* __restrict__ in,
                                     const float* __restrict__ out_grad, Shape shape, int input, int column) {
  float sum[Lanes] = {};
  for (int row = 0; row < shape.batch; ++row) {
    const float value = in[at(row, shape.inputs, input)];
    const float* grads = out_grad + at(row, shape.outputs, column);
    for (int lane = 0; lane < Lanes; ++lane) sum[lane] += value * grads[lane];
  }
  for (int lane = 0; lane < Lanes; ++lane) weight_grad[at(input, shape.outputs, column + lane)] = sum[lane];
}

/// bias_grad[column ...] = the sum of out_grad over the batch
template <int Lanes>
MLP_BODY void linear_backward_bias(float* __restrict__ bias_grad, const float* __restrict__ out_grad, Shape shape,
                                   int column) {
  float sum[Lanes] = {};
  for (int row = 0; row < shape.batch; ++row) {
    for (int lane = 0; lane < Lanes; ++lane) sum[lane] += out_grad[at(row, shape.outputs, column + lane)];
  }
  for (int lane = 0; lane < Lanes; ++lane) bias_grad[column + lane] = sum[lane];
}

template <int Lanes>
MLP_BODY void relu_forward(float* value, std::size_t index) {
  for (int lane = 0; lane < Lanes; ++lane)
    value[index + lane] = value[index + lane] > 0.0F ? value[index + lane] : 0.0F;
}

/// activation is the output of relu_forward: it is zero exactly where the gradient is cut.
template <int Lanes>
MLP_BODY void relu_backward(float* __restrict__ grad, const float* __restrict__ activation, std::size_t index) {
  for (int lane = 0; lane < Lanes; ++lane)
    grad[index + lane] = activation[index + lane] > 0.0F ? grad[index + lane] : 0.0F;
}

/// The mean squared error of one sample, and its gradient with respect to out.
MLP_BODY void mse_loss(float* __restrict__ loss, float* __restrict__ out_grad, const float* __restrict__ out,
                       const float* __restrict__ target, Shape shape, int row) {
  const float scale = 1.0F / static_cast<float>(shape.outputs);
  float sum = 0.0F;
  for (int column = 0; column < shape.outputs; ++column) {
    const std::size_t index = at(row, shape.outputs, column);
    const float difference = out[index] - target[index];
    sum += difference * difference;
    out_grad[index] = 2.0F * scale * difference / static_cast<float>(shape.batch);
  }
  loss[row] = sum * scale;
}

template <int Lanes>
MLP_BODY void adam(float* __restrict__ value, const float* __restrict__ grad, float* __restrict__ mean,
                   float* __restrict__ variance, AdamStep step, std::size_t index) {
  for (int lane = 0; lane < Lanes; ++lane) {
    const std::size_t i = index + static_cast<std::size_t>(lane);
    mean[i] = step.beta1 * mean[i] + (1.0F - step.beta1) * grad[i];
    variance[i] = step.beta2 * variance[i] + (1.0F - step.beta2) * grad[i] * grad[i];
    value[i] -= step.learning_rate * mean[i] / (std::sqrt(variance[i]) + step.epsilon);
  }
}

}  // namespace mlp
