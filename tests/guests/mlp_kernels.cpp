// The kernels of mlp.cu for the simulated GPU: the same bodies, walked over the whole grid in one loop.
#include "tests/guests/mlp_kernels.hpp"

#include "tests/guests/host_body.hpp"

namespace {

using guests::body;
using mlp::AdamStep;
using mlp::Shape;

constexpr int kLanes = 64;  // mlp takes widths that are multiples of it

// Columns outside, samples inside: the block of weights that one step reads stays in the cache for the whole batch.
void linear_forward(float* out, const float* in, const float* weight, const float* bias, Shape shape) {
  for (int column = 0; column < shape.outputs; column += kLanes) {
    for (int row = 0; row < shape.batch; ++row) {
      mlp::linear_forward<kLanes>(out, in, weight, bias, shape, row, column);
    }
  }
}

void linear_backward_input(float* in_grad, const float* out_grad, const float* weight, Shape shape) {
  constexpr int kRowsOfWeight = 8;  // each lane walks a row of its own
  for (int input = 0; input < shape.inputs; input += kRowsOfWeight) {
    for (int row = 0; row < shape.batch; ++row) {
      mlp::linear_backward_input<kRowsOfWeight>(in_grad, out_grad, weight, shape, row, input);
    }
  }
}

void linear_backward_weight(float* weight_grad, const float* in, const float* out_grad, Shape shape) {
  for (int input = 0; input < shape.inputs; ++input) {
    for (int column = 0; column < shape.outputs; column += kLanes) {
      mlp::linear_backward_weight<kLanes>(weight_grad, in, out_grad, shape, input, column);
    }
  }
}

void linear_backward_bias(float* bias_grad, const float* out_grad, Shape shape) {
  for (int column = 0; column < shape.outputs; column += kLanes) {
    mlp::linear_backward_bias<kLanes>(bias_grad, out_grad, shape, column);
  }
}

void relu_forward(float* value, std::size_t count) {
  for (std::size_t i = 0; i < count; i += kLanes) mlp::relu_forward<kLanes>(value, i);
}

void relu_backward(float* grad, const float* activation, std::size_t count) {
  for (std::size_t i = 0; i < count; i += kLanes) mlp::relu_backward<kLanes>(grad, activation, i);
}

void mse_loss(float* loss, float* out_grad, const float* out, const float* target, Shape shape) {
  for (int row = 0; row < shape.batch; ++row) mlp::mse_loss(loss, out_grad, out, target, shape, row);
}

void adam(float* value, const float* grad, float* mean, float* variance, AdamStep step, std::size_t count) {
  for (std::size_t i = 0; i < count; i += kLanes) mlp::adam<kLanes>(value, grad, mean, variance, step, i);
}

}  // namespace

extern "C" void simgpu_kernels() {
  simgpu_register("mlp_linear_forward", body<linear_forward>);
  simgpu_register("mlp_linear_backward_input", body<linear_backward_input>);
  simgpu_register("mlp_linear_backward_weight", body<linear_backward_weight>);
  simgpu_register("mlp_linear_backward_bias", body<linear_backward_bias>);
  simgpu_register("mlp_relu_forward", body<relu_forward>);
  simgpu_register("mlp_relu_backward", body<relu_backward>);
  simgpu_register("mlp_mse_loss", body<mse_loss>);
  simgpu_register("mlp_adam", body<adam>);
}
