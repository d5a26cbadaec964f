// What a training step moves, written down from the model's shapes and the options: the tests' own
// sums, which share no code with the planner. See the derivations in closed_forms.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/exec/engine.h"
#include "tests/system/run_model.h"

namespace millrace::test {

struct FlatForm {
  std::string name;
  int64_t unit = 0;
  bool block = false;
  bool forward_only = false;           // biases alone: the backward does not read them
  int64_t encoding_bytes = 4;          // of a gathered element
  int64_t shards = 1;                  // ranks that it is cut over
  int64_t padded = 0, shard = 0;       // elements
  std::vector<int64_t> params;         // stored elements of each parameter, in order
  std::vector<int64_t> contributions;  // of each parameter: gradients added per microbatch
  std::vector<int64_t> products;       // those of them that a matmul forms
  bool muon = false;                   // of matrices that Muon updates
  // Of each parameter that is a linear's weight: its columns; 0 of others.
  std::vector<int64_t> columns = {};
  int64_t align = 1;  // of which each parameter's beginning is a multiple
};

std::vector<FlatForm> FlatsOf(const Trial& trial);

// Rows of the residual stream that a rank gathers, and sums of them that it scatters, in one step;
// bytes that it sends for either. Exchanges of pieces between ranks with experts of their own.
struct ExchangeForm {
  int64_t gathers = 0, scatters = 0, gathered_bytes = 0, scattered_bytes = 0;
  int64_t pieces = 0, piece_bytes = 0;
};
// Of a microbatch, what the forward has gathered and the backward does not gather again, since the
// plan has room to keep it: rows of blocks' halves, keys of attentions.
struct KeptForm {
  int64_t halves = 0, keys = 0;
};
// By the kinds that each unit of blocks keeps, as the run has chosen them.
KeptForm KeptExchangesOf(const Trial& trial, const AssembledRun& run);
ExchangeForm ExchangesOf(const Trial& trial, const KeptForm& kept = {});

// Counters of one step on `rank`; ranks differ only in all-reduces whose slices are uneven.
// `kept`: blocks that sharding.reshard=auto keeps gathered.
StepCounters ExpectedPerStep(const Trial& trial, int64_t kept = 0, int64_t rank = 0,
                             const KeptForm& exchanges = {});

// Of a step on CUDA: f32 products that a matmul forms in scratch and adds to a bf16 gradient by the
// concat kernel. The one exception to "direct concatenates nothing" (kernels/ops/cost.h).
int64_t StagedPerStep(const Trial& trial);

// Gathers of block, embedding, head and norm parameters in one step.
int64_t ExpectedGathers(const Trial& trial, int64_t kept = 0);

StepCounters operator*(const StepCounters& counters, int64_t steps);
std::string ToString(const StepCounters& counters);

}  // namespace millrace::test
