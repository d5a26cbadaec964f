// Ranks in words.
#pragma once

#include <string>
#include <vector>

namespace millrace {

// "0, 2-5"; `ranks` ascending.
std::string RankList(const std::vector<int>& ranks);

// "rank 3", "ranks 0, 2-5"
std::string RanksText(const std::vector<int>& ranks);

}  // namespace millrace
