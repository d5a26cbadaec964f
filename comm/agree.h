// What the ranks of a communicator settle by host messages: one fails, all hear. Collective; the
// same result on every rank.
#pragma once

#include <functional>
#include <optional>

#include "comm/communicator.h"
#include "runtime/base/error.h"

namespace millrace {

struct RankFailure {
  int rank = 0;
  Error error;
};

// Of the lowest rank that has one. Error(kComm) here and below: a rank is in another exchange.
std::optional<RankFailure> FirstFailure(Communicator& ranks, const std::optional<Error>& own);

// `step` runs on every rank; an exception that is no Error counts as kInternal.
std::optional<RankFailure> FirstFailure(Communicator& ranks, const std::function<void()>& step);

// `step` runs on rank 0; its Error is thrown on all.
void OnLeader(Communicator& ranks, const std::function<void()>& step);

}  // namespace millrace
