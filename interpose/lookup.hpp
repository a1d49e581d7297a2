// Which wrapped entry point an answer of the loader or of cuGetProcAddress stands for. Pure searches of constant
// tables: no allocation, no lock, no library call, nothing initialised; they work before any constructor has run.
#pragma once

#include "interpose/hook_id.hpp"

namespace hmshim::interpose {

enum class Flavour : std::uint8_t { legacy, ptsz, ptds };

struct LookupRow {
  const char* base;
  const char* symbol;
  int since;
  Flavour flavour;
  HookId id;
};

// The row that exports exactly this name; null for any other name and for null.
[[nodiscard]] const LookupRow* find_symbol(const char* symbol) noexcept;

// What the driver itself answers for (base, version, flags); null when it fails or has nothing.
using AskDriver = const void* (*)(const char* base, int version, cuuint64_t flags);

// The row behind `answer`, which the driver gave for `base` at `version`; null when the answer is none of ours.
//
// One base name stands for several functions: by version (cuStreamBeginCapture 10000 and 10010) and by default stream.
// A row is the right one when the driver, asked for that row's own version and flavour, gives the same address. So the
// choice between them stays the driver's: an older driver that lacks a row, a newer one with an ABI that the table does
// not know and a per-thread ask that falls back to the legacy function all come out right. The oldest such row wins: an
// older driver gives one address for this version and the next.
[[nodiscard]] const LookupRow* find_answer(const char* base, int version, const void* answer, AskDriver ask) noexcept;

}  // namespace hmshim::interpose
