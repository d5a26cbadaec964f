// Reading a JSON document whose keys are all known: every value is checked, and what nobody asked
// for is unknown. Errors are collected, a line each, so that a file is mended in one go.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

namespace millrace {

enum class Least { kZero, kAboveZero };

// One object of the document, `path` its place in it ("gemm.tiles[2]", "" the whole). `value` and
// `errors` outlive it.
class DocumentSection {
 public:
  using json = nlohmann::ordered_json;

  DocumentSection(const json& value, std::string path, std::vector<std::string>& errors);

  bool Has(const std::string& key) const { return value_.is_object() && value_.contains(key); }
  const json* Find(const std::string& key);  // null, and an error: missing
  void Fail(const std::string& key, const json& value, const std::string& allowed);

  // What is returned after an error is allowed, so that reading goes on.
  double NumberOf(const std::string& key, Least least);
  int64_t IntegerOf(const std::string& key, int64_t low);
  std::string TextOf(const std::string& key);
  bool BoolOf(const std::string& key);

  // f(element as a section) for each of an array of objects.
  template <class F>
  void ForEach(const std::string& key, F&& f) {
    const json* value = Find(key);
    if (value == nullptr) return;
    if (!value->is_array()) return Fail(key, *value, "an array");
    for (size_t i = 0; i < value->size(); ++i) {
      DocumentSection element((*value)[i], Path(key) + "[" + std::to_string(i) + "]", errors_);
      f(element);
      element.RefuseUnknown();
    }
  }

  // An error for each key that was not asked for.
  void RefuseUnknown() const;

  std::string Path(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }

 private:
  const json& value_;
  std::string path_;
  std::vector<std::string>& errors_;
  std::set<std::string> asked_;
};

}  // namespace millrace
