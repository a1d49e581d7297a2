// Evicts what is used furthest in the future (Belady, IBM Systems Journal 1966), and fetches 8 launches ahead: MSched's
// optimal replacement with early fetch (arXiv 2512.24637), for one program. It knows the future from the iteration
// before, so it is only as good as that where iterations are equal: a yardstick for replays.
#include <memory>

#include "policy/furthest_use.hpp"

namespace hmshim::policy {

std::unique_ptr<Policy> make_belady() { return std::make_unique<FurthestUse>(); }

}  // namespace hmshim::policy
