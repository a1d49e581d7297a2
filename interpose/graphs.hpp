// What the executable graphs of the guest name. A replay makes no call per kernel, so the driver is asked for the nodes
// when a graph is instantiated, however it was built: by capture, node by node, as a clone or a child of another.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "interpose/kernel_args.hpp"
#include "interpose/tensor_maps.hpp"
#include "uvm/allocation_table.hpp"
#include "uvm/driver_api.hpp"

namespace hmshim::interpose {

// One replay of a graph.
struct GraphOperands {
  std::vector<std::uint64_t> bases;  // of the allocations that its nodes name, each once
  std::uint64_t signature = 0;       // of its kernels and their shapes: the same for a graph that was made anew
  bool is_complete = true;           // false: the driver does not tell the operands of every node
};

// Who keeps memory for a graph: see uvm::TensorPool::pin().
class GraphMemory {
 public:
  virtual ~GraphMemory() = default;
  virtual std::uint64_t pin(std::uint64_t address) noexcept = 0;
  virtual void unpin(std::uint64_t base) noexcept = 0;
};

class Graphs {
 public:
  // As long as an executable graph lives, what its nodes name is pinned in `memory`.
  Graphs(const uvm::DriverApi& driver, const uvm::AllocationTable& allocations, KernelLayouts& layouts,
         const TensorMaps& tensor_maps, GraphMemory& memory)
      : driver_(driver), allocations_(allocations), layouts_(layouts), tensor_maps_(tensor_maps), memory_(memory) {}

  // All of these may throw std::bad_alloc. After the driver has done it:
  void instantiated(CUgraphExec exec, CUgraph graph);  // by cuGraphExecUpdate as well
  void kernel_changed(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS& params);
  void copy_changed(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D& params);
  void memset_changed(CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS& params);
  void child_changed(CUgraphExec exec, CUgraph child);
  // Before the driver does it: another thread may be given the same handle afterwards.
  void destroyed(CUgraphExec exec);

  // Null for a graph that was never seen.
  [[nodiscard]] std::shared_ptr<const GraphOperands> find(CUgraphExec exec);

 private:
  struct Node {
    std::vector<std::uint64_t> bases;
    std::vector<std::uint64_t> named{};  // words that may be addresses of ours; then the bases that are pinned
    std::uint64_t signature = 0;
    bool is_known = true;

    static Node unknown() { return {.bases = {}, .is_known = false}; }
  };
  // By node of the graph from which it was instantiated, and of that graph's children.
  using Nodes = std::map<CUgraphNode, Node>;
  struct Exec {
    Nodes nodes;
    std::shared_ptr<const GraphOperands> operands;  // null: to be put together again
  };

  void read(CUgraph graph, Nodes& nodes) const;
  [[nodiscard]] Node read(CUgraphNode handle, CUgraphNodeType type) const;
  [[nodiscard]] Node node_of(const CUDA_KERNEL_NODE_PARAMS& params) const;
  [[nodiscard]] Node node_of(const CUDA_MEMCPY3D& params) const;
  [[nodiscard]] Node node_of(const CUDA_MEMSET_NODE_PARAMS& params) const;
  void add_base(CUdeviceptr address, Node& node) const;
  void pin(Node& node) const;
  void unpin(const Node& node) const;
  void replace(CUgraphExec exec, CUgraphNode node, Node&& fresh);

  const uvm::DriverApi& driver_;
  const uvm::AllocationTable& allocations_;
  KernelLayouts& layouts_;
  const TensorMaps& tensor_maps_;
  GraphMemory& memory_;

  std::mutex mutex_;  // no driver call is made under it
  std::unordered_map<CUgraphExec, Exec> execs_;
};

}  // namespace hmshim::interpose
