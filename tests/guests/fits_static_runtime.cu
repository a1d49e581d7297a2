// The same program; the Makefile links this one to the static runtime.
#include "tests/guests/fits.cu"
