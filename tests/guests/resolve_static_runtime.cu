// The same program; the Makefile links this one to the static runtime.
#include "tests/guests/resolve_runtime.cu"
