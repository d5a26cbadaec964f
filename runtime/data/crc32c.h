// CRC-32C (Castagnoli), for formats of others that ask for it: TFRecord. Our own files are checked
// by hash.h. Source: RFC 3720, appendix B.4 (polynomial 0x1EDC6F41, reflected; all bits inverted
// before and after).
#pragma once

#include <cstdint>
#include <string_view>

namespace millrace {

uint32_t Crc32c(std::string_view bytes);

}  // namespace millrace
