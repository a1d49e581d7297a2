// Graphs: nodes with edges, and executable copies of them.
#pragma once

#include <cstddef>
#include <vector>

#include "tests/simgpu/driver/driver.hpp"
#include "tests/simgpu/driver/work.hpp"

namespace hmshim::simgpu {

// ---- the caller holds Driver::mutex

[[nodiscard]] CUgraph make_graph();
// With its nodes. False for an unknown handle.
bool destroy_graph(CUgraph graph);
// Appends a node after `dependencies`, which are nodes of `graph`.
[[nodiscard]] CUgraphNode add_node(CUgraph graph, Work work, std::vector<CUgraphNode> dependencies);
[[nodiscard]] const std::vector<CUgraphNode>& dependencies_of(CUgraphNode node);

// ---- no lock needed

[[nodiscard]] bool is_graph(CUgraph graph);
// Graphs and executable graphs that were not destroyed.
[[nodiscard]] std::size_t live_graphs();

}  // namespace hmshim::simgpu
