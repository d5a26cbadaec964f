#pragma once

#include <string>

namespace millrace {

// This host's, as the system knows it; "unknown-host" where it says none. Never empty.
std::string HostName();

}  // namespace millrace
