// A program as environments of conda have them: it brings a C++ runtime of its own, newer than the system's.
#include <stdio.h>

extern "C" int newest_function();

int main() { printf("%d\n", newest_function()); }
