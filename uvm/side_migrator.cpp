#include "uvm/side_migrator.hpp"

#include <algorithm>
#include <optional>

#include "uvm/migrator.hpp"

namespace hmshim::uvm {

bool SideMigrator::open() noexcept {
  if (urgent_ != nullptr) return true;
  return api_.cuStreamCreate(&leaving_, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS &&
         api_.cuStreamCreate(&coming_, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS &&
         api_.cuStreamCreate(&urgent_, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS;
}

SideMigrator::Event SideMigrator::record(CUstream stream) noexcept {
  CUevent event = nullptr;
  if (api_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) return nullptr;
  Event owner(event, [this](CUevent spent) { static_cast<void>(api_.cuEventDestroy_v2(spent)); });
  return api_.cuEventRecord(event, stream) == CUDA_SUCCESS ? owner : nullptr;
}

void SideMigrator::execute(std::span<const policy::Action> actions, std::span<const policy::ExtentId> needed,
                           CUstream stream) noexcept {
  if (may_be_capturing(api_, stream)) return;
  const std::lock_guard lock(mutex_);
  if (!actions.empty() && open()) enqueue(actions, needed, stream);
  await(needed, stream);
}

void SideMigrator::enqueue(std::span<const policy::Action> actions, std::span<const policy::ExtentId> needed,
                           CUstream stream) {
  now_.clear();
  soon_.clear();
  Event ready = record(stream);
  if (ready == nullptr) return;
  static_cast<void>(api_.cuStreamWaitEvent(leaving_, ready.get(), 0));
  bool has_demoted = false;
  for (const policy::Action& action : actions) {
    if (action.kind == policy::ActionKind::Demote) has_demoted |= move(action, leaving_);
    if (action.kind != policy::ActionKind::Prefetch) continue;
    const bool is_needed = std::find(needed.begin(), needed.end(), action.extent) != needed.end();
    (is_needed ? now_ : soon_).push_back(action);
  }
  // What comes needs the room of what leaves; without it the driver would evict by its own list.
  if (has_demoted) ready = record(leaving_);
  fetch(now_, ready.get(), urgent_);
  fetch(soon_, ready.get(), coming_);
}

void SideMigrator::fetch(std::span<const policy::Action> actions, CUevent after, CUstream stream) {
  if (actions.empty()) return;
  if (after != nullptr) static_cast<void>(api_.cuStreamWaitEvent(stream, after, 0));
  for (const policy::Action& action : actions) static_cast<void>(move(action, stream));
  const Event arrival = record(stream);
  for (const policy::Action& action : actions) {
    if (action.extent >= arrivals_.size()) arrivals_.resize(action.extent + 1);
    arrivals_[action.extent] = arrival;
  }
}

bool SideMigrator::move(const policy::Action& action, CUstream stream) const noexcept {
  const std::optional<Allocation> allocation = table_.lookup_extent(action.extent);
  if (!allocation) return false;
  return uvm::move(api_, *allocation, action.kind, stream) == policy::round_up_to_block(allocation->bytes);
}

// The same event may stand for several: waiting once is enough.
void SideMigrator::await(std::span<const policy::ExtentId> needed, CUstream stream) noexcept {
  CUevent waited_for = nullptr;
  for (const policy::ExtentId id : needed) {
    if (id >= arrivals_.size() || arrivals_[id] == nullptr) continue;
    if (arrivals_[id].get() != waited_for) static_cast<void>(api_.cuStreamWaitEvent(stream, arrivals_[id].get(), 0));
    waited_for = arrivals_[id].get();
    arrivals_[id] = nullptr;
  }
}

}  // namespace hmshim::uvm
