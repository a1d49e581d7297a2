// The kernel of the stand-ins. Only its name and its parameter matter: what it touches is said by its arguments.
#include "tests/frameworks/standins/product_arguments.hpp"

extern "C" __global__ void standin_product(hmshim::frameworks::ProductArguments) {}
