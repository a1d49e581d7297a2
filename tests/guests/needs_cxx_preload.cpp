// What a preload library must not be: it needs the system's C++ runtime.
#include <string>

std::string anything(const char* text) { return std::string(text) + text; }
