#include "runtime/text/bpe/byte_trie.h"

#include <algorithm>
#include <bitset>

namespace millrace {

// Finds places for nodes. Only the last blocks are searched: old ones are all but full.
class ByteTrieBuilder {
 public:
  ByteTrieBuilder(const std::vector<ByteTrie::Entry>& entries, ByteTrie& trie)
      : entries_(entries), trie_(trie) {
    AddBlock();  // block 0, which stays free
    open_.clear();
  }

  void Build() {
    if (!entries_.empty()) Visit({0, entries_.size(), 0, kRoot});
    while (!nodes_.empty()) {
      const Node node = nodes_.back();
      nodes_.pop_back();
      Visit(node);
    }
  }

 private:
  static constexpr size_t kOpenBlocks = 8;
  static constexpr int kMostFailures = 64;  // of searches in a block, until it is closed
  static constexpr uint32_t kRoot = ~0u;

  // The entries [begin, end), which share their first `depth` bytes.
  struct Node {
    size_t begin, end, depth;
    uint32_t slot;
  };
  struct OpenBlock {
    uint32_t first;  // slot
    std::bitset<256> taken, used_bases;
    int failures = 0;
  };
  struct Child {
    uint8_t byte;
    size_t begin, end;
  };

  OpenBlock& AddBlock() {
    const auto first = static_cast<uint32_t>(trie_.slots_.size());
    trie_.slots_.resize(first + 256);
    return open_.emplace_back(OpenBlock{.first = first, .taken = {}, .used_bases = {}});
  }

  void Visit(const Node& node) {
    size_t begin = node.begin;
    if (entries_[begin].bytes.size() == node.depth) {  // sorted: the shortest comes first
      trie_.slots_[node.slot].value_byte += (entries_[begin].value + 1) << ByteTrie::kByteBits;
      ++begin;
    }
    if (begin == node.end) return;
    children_.clear();
    for (size_t i = begin; i < node.end; ++i) {
      const auto byte = static_cast<uint8_t>(entries_[i].bytes[node.depth]);
      if (children_.empty() || children_.back().byte != byte) children_.push_back({byte, i, i});
      children_.back().end = i + 1;
    }
    const uint32_t base = Place();
    (node.slot == kRoot ? trie_.root_base_ : trie_.slots_[node.slot].base) = base;
    for (auto child = children_.rbegin(); child != children_.rend(); ++child) {
      trie_.slots_[base ^ child->byte].value_byte = child->byte;
      nodes_.push_back({child->begin, child->end, node.depth + 1, base ^ child->byte});
    }
  }

  // A base by which all of children_ lie in free slots, which are taken.
  uint32_t Place() {
    for (size_t i = 0; i < open_.size(); ++i) {
      const int base = BaseIn(open_[i]);
      if (base >= 0) return Take(open_[i], static_cast<uint32_t>(base));
      if (++open_[i].failures == kMostFailures) open_.erase(open_.begin() + int64_t(i--));
    }
    if (open_.size() == kOpenBlocks) open_.erase(open_.begin());
    return Take(AddBlock(), 0);
  }

  int BaseIn(const OpenBlock& block) const {
    const uint8_t first = children_[0].byte;
    for (int slot = 0; slot < 256; ++slot) {
      if (block.taken[slot] || block.used_bases[slot ^ first]) continue;
      const int base = slot ^ first;
      const bool fits = std::all_of(children_.begin(), children_.end(), [&](const Child& child) {
        return !block.taken[base ^ child.byte];
      });
      if (fits) return base;
    }
    return -1;
  }

  uint32_t Take(OpenBlock& block, uint32_t base) {
    block.used_bases[base] = true;
    for (const Child& child : children_) block.taken[base ^ child.byte] = true;
    return block.first + base;
  }

  const std::vector<ByteTrie::Entry>& entries_;  // sorted
  ByteTrie& trie_;
  std::vector<OpenBlock> open_;
  std::vector<Node> nodes_;      // to be visited
  std::vector<Child> children_;  // of the node that is visited
};

ByteTrie::ByteTrie(std::vector<Entry> entries) {
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.bytes < b.bytes; });
  ByteTrieBuilder(entries, *this).Build();
}

}  // namespace millrace
