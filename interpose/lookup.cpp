#include "interpose/lookup.hpp"

#include <algorithm>
#include <string_view>

// On the dlsym path (lookup_exports.cpp): built without sanitizers and built-ins, and no library function may be called
// at run time. The tables are sorted by the compiler.
namespace hmshim::interpose {
namespace {

struct Rows {
  LookupRow row[kHookCount];
};

constexpr Rows kRowsOfTable = {{
#define HOOK(base, symbol, since, flavour, need, effect, params, args) \
  {#base, #symbol, since, Flavour::flavour, HookId::symbol},
#define RESOLVE(base, symbol, since, flavour, params, args) {#base, #symbol, since, Flavour::flavour, HookId::symbol},
#define PASS(base, symbol, since, flavour, reason)
#include "interpose/hooks.def"
#undef HOOK
#undef RESOLVE
#undef PASS
}};

template <typename Less>
consteval Rows sorted_by(Less less) {
  Rows rows = kRowsOfTable;
  std::sort(rows.row, rows.row + kHookCount, less);
  return rows;
}

constinit const Rows kBySymbol = sorted_by(
    [](const LookupRow& a, const LookupRow& b) { return std::string_view(a.symbol) < std::string_view(b.symbol); });

constinit const Rows kByBase = sorted_by([](const LookupRow& a, const LookupRow& b) {
  if (const int order = std::string_view(a.base).compare(b.base); order != 0) return order < 0;
  return a.since != b.since ? a.since < b.since : a.flavour < b.flavour;
});

int compare(const char* a, const char* b) noexcept {
  while (*a != '\0' && *a == *b) ++a, ++b;
  return static_cast<unsigned char>(*a) - static_cast<unsigned char>(*b);
}

// The first row whose `key` is not less than `name`; kHookCount when there is none.
std::size_t lower_bound(const Rows& rows, const char* LookupRow::*key, const char* name) noexcept {
  std::size_t begin = 0;
  std::size_t end = kHookCount;
  while (begin < end) {
    const std::size_t middle = begin + (end - begin) / 2;
    if (compare(rows.row[middle].*key, name) < 0) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

}  // namespace

const LookupRow* find_symbol(const char* symbol) noexcept {
  if (symbol == nullptr || symbol[0] != 'c' || symbol[1] != 'u') return nullptr;
  const std::size_t index = lower_bound(kBySymbol, &LookupRow::symbol, symbol);
  if (index == kHookCount || compare(kBySymbol.row[index].symbol, symbol) != 0) return nullptr;
  return &kBySymbol.row[index];
}

const LookupRow* find_answer(const char* base, int version, const void* answer, AskDriver ask) noexcept {
  if (base == nullptr || answer == nullptr) return nullptr;
  for (std::size_t index = lower_bound(kByBase, &LookupRow::base, base);
       index < kHookCount && compare(kByBase.row[index].base, base) == 0 && kByBase.row[index].since <= version;
       ++index) {
    const LookupRow& row = kByBase.row[index];
    const cuuint64_t flags = row.flavour == Flavour::legacy ? CU_GET_PROC_ADDRESS_LEGACY_STREAM
                                                            : CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    if (ask(row.base, row.since, flags) == answer) return &row;
  }
  return nullptr;
}

}  // namespace hmshim::interpose
