// Ranks as processes of one host that nobody has launched as a job: each opens a door, tells the
// others where it is by a way of its own, and they connect. A stream socket of Unix joins each
// pair.
//
// Abort    Aborting any communicator of a rank closes all of its sockets; so does an error of an
//          exchange. Peers that wait for it, or will, get Error(kPeerLost): so does a process's
//          end.
// Order    A pair has one stream for all groups that both are in. So calls of those come in the
//          same order on both, as those of a plan do; a rank that is in another call is
//          Error(kComm).
// Threads  A factory and its communicators belong to one thread, except for Communicator::Abort.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/comm_factory.h"
#include "comm/host_collectives.h"

namespace millrace {

// Of a rank's door, for its peers alone: who knows it may come in.
struct SocketAddress {
  uint64_t name = 0, secret = 0;
};

// Listens from the beginning, so that peers may connect before this rank does. Error(kComm).
class SocketDoor {
 public:
  explicit SocketDoor(int world_size);
  ~SocketDoor();
  SocketDoor(const SocketDoor&) = delete;
  SocketDoor& operator=(const SocketDoor&) = delete;

  const SocketAddress& address() const { return address_; }
  int descriptor() const { return descriptor_; }

 private:
  SocketAddress address_;
  int descriptor_ = -1;
};

// A collective over the ranks behind `addresses`, of which `door` is that of `rank`; it is not
// needed any more afterwards. Error(kTimeout), Error(kPeerLost).
std::unique_ptr<CommFactory> MakeSocketCommFactory(const SocketDoor& door, int rank,
                                                   const std::vector<SocketAddress>& addresses,
                                                   const HostCommOptions& options = {});

}  // namespace millrace
