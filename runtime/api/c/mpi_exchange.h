// The all-gather of an MPI that this library is not linked with: opened at run time, because a
// program has asked for it (mr_mpi). Open MPI's handles are addresses of its own objects, so no
// header of it is needed.
#pragma once

#include <cstddef>

#include "runtime/api/c/millrace.h"

namespace millrace {

// Opens the library, and begins an MPI that has not begun; it is ended when the process ends. Not a
// collective. CallError MR_UNSUPPORTED: no such library, another MPI than Open MPI, one that has
// ended. Error(kComm): what MPI says.
void BeginMpi(const mr_mpi& asked);

class MpiExchange {
 public:
  // A collective over the communicator; begins MPI, with the errors of that.
  explicit MpiExchange(const mr_mpi& asked);
  ~MpiExchange();
  MpiExchange(const MpiExchange&) = delete;
  MpiExchange& operator=(const MpiExchange&) = delete;

  int rank() const { return rank_; }
  int world() const { return world_; }

  // As mr_run_options.exchange; `self` is the MpiExchange.
  static mr_status* Exchange(void* self, void* buffer, size_t each);

 private:
  void* comm_ = nullptr;  // a duplicate of the caller's
  int rank_ = 0, world_ = 1;
};

}  // namespace millrace
