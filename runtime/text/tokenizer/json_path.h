// A value of a JSON document and the way to it, so that every error says where: "t.json:
// model.merges[7]". All errors are kData.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace millrace {

class JsonPath {
 public:
  JsonPath(const nlohmann::json& root, std::string file);  // keeps a reference to root

  std::string name() const;  // of this value
  const nlohmann::json& value() const { return *value_; }

  bool Has(const std::string& key) const;             // of an object
  JsonPath operator[](const std::string& key) const;  // a key that must be there
  JsonPath operator[](const char* key) const { return (*this)[std::string(key)]; }
  JsonPath operator[](size_t index) const;

  // An object with these keys or fewer.
  void AllowKeys(std::initializer_list<const char*> keys) const;

  const nlohmann::json& ObjectAt() const;
  const nlohmann::json& ArrayAt() const;
  std::string Text() const;
  bool Bool() const;
  int64_t Count(int64_t most) const;  // 0 to most

  // What is not supported unless it says nothing.
  void RequireNull() const;
  void RequireFalse() const;
  void RequireEmptyOrNull() const;
  void RequireZeroOrNull() const;

 private:
  JsonPath(const nlohmann::json& value, std::string file, std::string way);
  std::string Shown() const;
  [[noreturn]] void Refuse(const char* allowed) const;

  const nlohmann::json* value_;
  std::string file_, way_;
};

}  // namespace millrace
