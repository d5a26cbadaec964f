// What a run trains on and is evaluated on, opened and checked: data.path, or the sources that
// data.sources blends.
//
// Held out  data.val_path, for all; else of each source what OpenDataSplit holds out of it. Then
//           the loss is the mean of the sources' losses, weighed as they are blended.
// Errors    kData, as OpenDataSplit's.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/config/config.h"
#include "runtime/data/tokens/token_source.h"

namespace millrace {

struct NamedSource {
  // A blend's: the path's last part without .bin, .idx or .txt, with a number behind it where
  // another source has it already. "" where there is one source and nothing to tell it from.
  std::string name;
  double weight = 1;
  std::shared_ptr<const TokenSource> source;
};

struct RunData {
  std::vector<NamedSource> train;     // at least one
  std::vector<NamedSource> held_out;  // one, or as many as train
  bool is_blend = false;              // data.sources was given

  std::string Describe() const;     // for people
  std::string Fingerprint() const;  // changes when the data, the weights or their order do
  // [{"name", "weight"}, ...] as JSON, which a checkpoint keeps; "null" for no blend.
  std::string BlendJson() const;
};

RunData OpenRunData(const Config& config);

}  // namespace millrace
