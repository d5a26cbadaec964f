#include "tools/cli/mpirun_words.h"

#include <catch2/catch.hpp>
#include <string>

namespace millrace {
namespace {

// As Open MPI 4.1.4 says it.
const std::string kRule(74, '-');
const std::string kLost = kRule +
                          "\nORTE has lost communication with a remote daemon.\n\n"
                          "  HNP daemon   : [[64547,0],0] on node oak\n"
                          "  Remote daemon: [[64547,0],1] on node elm\n\n"
                          "This is usually due to either a failure of the TCP network\n" +
                          kRule + "\n";
const std::string kUnstarted =
    kRule + "\nORTE was unable to reliably start one or more daemons.\n" + kRule + "\n";
const std::string kPeer =
    kRule +
    "\nAn MPI communication peer process has unexpectedly disconnected.  This\n"
    "  Local host: oak\n  Local PID:  64\n  Peer host:  ash\n" +
    kRule + "\n";

MpirunWords Said(const std::string& text, size_t piece = 1000) {
  MpirunWords words;
  for (size_t at = 0; at < text.size(); at += piece) words.Read(text.substr(at, piece));
  return words;
}

TEST_CASE("mpirun's words name the host that does not answer, in pieces of any size", "[cli]") {
  for (const size_t piece : {1, 7, 1000}) {
    INFO("pieces of " << piece);
    CHECK(Said(kLost, piece).lost_host() == "host elm");
    CHECK(Said(kLost, piece).ended());
    CHECK(Said(kPeer, piece).lost_host() == "host ash");
    CHECK_FALSE(Said(kPeer, piece).ended());  // a rank's words: mpirun's may follow
    CHECK(Said(kUnstarted, piece).lost_host() == "a host");
    CHECK(Said(kUnstarted + kPeer, piece).lost_host() == "host ash");
    CHECK(Said(kPeer + kLost, piece).lost_host() == "host ash");
  }
}

TEST_CASE("other words are no end and no host", "[cli]") {
  for (const std::string& text : {std::string("step 1/2 loss 3\n"), std::string(100000, 'x') + "\n",
                                  "a rank: " + kLost.substr(kRule.size() + 1, 48) + "\n"}) {
    CHECK(Said(text).lost_host().empty());
    CHECK_FALSE(Said(text).ended());
  }
  CHECK(Said("MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD\n").ended());
  CHECK(Said("mpirun noticed that process rank 2 with PID 0 on node elm exited\n").ended());
  CHECK(Said("mpirun noticed that process rank 2 with PID 0 on node elm exited\n").lost_rank() ==
        2);
  CHECK_FALSE(Said(kLost).lost_rank());
}

}  // namespace
}  // namespace millrace
