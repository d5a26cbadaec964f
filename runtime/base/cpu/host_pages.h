// Pages of host memory that go back to the system and come again at their addresses.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "runtime/base/device.h"

namespace millrace {

int64_t HostPageBytes();

// As Device::AllocatePaged. What is unmapped may not be read or written (PROT_NONE): who does ends
// the process, instead of reading zeros.
std::unique_ptr<PagedBuffer> AllocateHostPages(int64_t bytes, const std::string& label,
                                               std::span<const int64_t> cuts);

}  // namespace millrace
