// CRC-32C against published values.
#include "runtime/data/crc32c.h"

#include <catch2/catch.hpp>
#include <string>

namespace millrace {
namespace {

TEST_CASE("the examples of RFC 3720, appendix B.4", "[crc32c]") {
  std::string up, down;
  for (int i = 0; i < 32; ++i) {
    up.push_back(static_cast<char>(i));
    down.push_back(static_cast<char>(31 - i));
  }
  // An iSCSI Read (10) command.
  std::string command(48, '\0');
  command[0] = 0x01;
  command[1] = static_cast<char>(0xc0);
  command[16] = 0x14;
  command[22] = 0x04;
  command[27] = 0x14;
  command[31] = 0x18;
  command[32] = 0x28;
  command[40] = 0x02;
  CHECK(Crc32c(std::string(32, '\0')) == 0x8a9136aa);
  CHECK(Crc32c(std::string(32, '\xff')) == 0x62a8ab43);
  CHECK(Crc32c(up) == 0x46dd794e);
  CHECK(Crc32c(down) == 0x113fdb5c);
  CHECK(Crc32c(command) == 0xd9963a56);
}

TEST_CASE("the usual check value, and nothing", "[crc32c]") {
  CHECK(Crc32c("123456789") == 0xe3069283);
  CHECK(Crc32c("") == 0);
}

}  // namespace
}  // namespace millrace
