#include "runtime/text/chat/chat_mask.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/runtime/data/error_matchers.h"
#include "tests/runtime/text/golden.h"

namespace millrace {
namespace {

using nlohmann::json;
using Mask = std::vector<uint8_t>;

// testdata/tokenizer.json with special tokens, from id 697 on, and other members.
Tokenizer TokenizerWith(const std::vector<std::string>& tokens,
                        const json& patch = json::object()) {
  json document = text::ReadTestData("tokenizer.json");
  document.merge_patch(patch);
  for (size_t i = 0; i < tokens.size(); ++i) {
    json token = document["added_tokens"][0];
    token["id"] = 697 + i;
    token["content"] = tokens[i];
    document["added_tokens"].push_back(token);
  }
  return Tokenizer(document.dump(), "talk.json");
}

MaskedIds Encoded(const Tokenizer& tokenizer, ChatTemplate chat, const json& object) {
  TextEncoder encoder(tokenizer);
  MaskedIds out;
  EncodeConversation(chat, ReadConversation(object, "messages", "f: line 7"), encoder, "f: line 7",
                     out);
  return out;
}

json Talk(const std::vector<std::pair<std::string, std::string>>& messages) {
  json list = json::array();
  for (const auto& [role, content] : messages)
    list.push_back({{"role", role}, {"content", content}});
  return {{"messages", list}};
}

// What counts, as text; the rest as dots, one for each token.
std::string Learned(const Tokenizer& tokenizer, const MaskedIds& masked) {
  std::string text;
  for (size_t i = 0; i < masked.ids.size(); ++i)
    text += masked.mask[i] == 1 ? std::string(tokenizer.Bytes(masked.ids[i])) : ".";
  return text;
}

TEST_CASE("answers and what ends them count, computed by hand", "[text][chat]") {
  const Tokenizer tokenizer = TokenizerWith({"<|im_start|>", "<|im_end|>"});
  // Letters that are in no merge are a token each; 698 ends, "\n" follows.
  const MaskedIds chatml = Encoded(tokenizer, ChatTemplate::kChatMl,
                                   Talk({{"q", "zz"}, {"assistant", "qz"}, {"q", ""}}));
  const int32_t q = 80, z = 89, newline = 198;
  std::vector<int32_t> ids = {697, q, newline, z, z, 698, newline, 697};
  Mask mask(8, 0);
  TextEncoder encoder(tokenizer);
  const std::vector<int32_t> role = encoder.Encode("assistant");
  ids.insert(ids.end(), role.begin(), role.end());
  mask.resize(ids.size(), 0);
  ids.insert(ids.end(), {newline, q, z, 698, newline, 697, q, newline, 698, newline});
  for (const uint8_t counts : {0, 1, 1, 1, 0, 0, 0, 0, 0, 0}) mask.push_back(counts);
  CHECK(chatml.ids == ids);
  CHECK(chatml.mask == mask);

  const MaskedIds plain =
      Encoded(tokenizer, ChatTemplate::kPlain, Talk({{"q", "z"}, {"assistant", "qz"}}));
  CHECK(Learned(tokenizer, plain) ==
        std::string(plain.ids.size() - 4, '.') + "qz\n\n");  // two newlines end an answer
}

TEST_CASE("ids and masks are transformers' own", "[text][chat]") {
  const json golden = text::ReadTestData("chat_golden.json"),
             patches = text::ReadTestData("golden.json")["variants"];
  constexpr int32_t kNewlines = 695;
  int64_t compared = 0, shared = 0;
  for (const json& one : golden) {
    const std::string variant = one["variant"], name = one["template"];
    json document = text::ReadTestData("tokenizer.json");
    document.merge_patch(patches[variant]["patch"]);
    std::map<int32_t, std::string> tokens;  // in the order of their ids
    for (const auto& [content, id] : one["tokens"].items()) tokens[id] = content;
    for (const auto& [id, content] : tokens) {
      json token = document["added_tokens"][0];
      token["id"] = id;
      token["content"] = content;
      document["added_tokens"].push_back(token);
    }
    // In place of the last merge, as with_newlines.
    json& vocab = document["model"]["vocab"];
    const auto last = std::find(vocab.begin(), vocab.end(), json(kNewlines));
    REQUIRE(last != vocab.end());
    vocab.erase(last);
    vocab["\u010a\u010a"] = kNewlines;
    document["model"]["merges"].back() = json::array({"\u010a", "\u010a"});
    const Tokenizer tokenizer(document.dump(), variant);
    for (const json& talk : one["conversations"]) {
      CAPTURE(variant, name, talk["messages"].dump());
      const MaskedIds masked = Encoded(tokenizer, ChatTemplateOf(name), talk);
      CHECK(masked.ids == talk["ids"].get<std::vector<int32_t>>());
      CHECK(masked.mask == talk["mask"].get<Mask>());
      for (size_t i = 1; i < masked.ids.size(); ++i)
        shared += masked.ids[i] == kNewlines && masked.mask[i] == 1 && masked.mask[i - 1] == 0;
      ++compared;
    }
  }
  CHECK(compared == 36);
  CHECK(shared > 0);  // a token of the head's last byte and the answer's first
}

TEST_CASE("a weight leaves an answer out, and text is no token", "[text][chat]") {
  const Tokenizer tokenizer = TokenizerWith({"<|im_start|>", "<|im_end|>"});
  json talk = Talk({{"assistant", "z"}, {"assistant", "q<|im_end|>"}, {"user", "z"}});
  talk["messages"][0]["weight"] = 0;
  talk["messages"][1]["weight"] = 1;
  talk["messages"][2]["name"] = nullptr;
  const MaskedIds masked = Encoded(tokenizer, ChatTemplate::kChatMl, talk);
  std::string learned = Learned(tokenizer, masked);
  std::erase(learned, '.');
  CHECK(learned == "q<|im_end|><|im_end|>");
  CHECK(std::count(masked.ids.begin(), masked.ids.end(), 698) == 3);
}

TEST_CASE("a blank that the tokenizer puts ahead of a text is not the answer's", "[text][chat]") {
  const Tokenizer tokenizer = TokenizerWith({"<|im_start|>", "<|im_end|>"},
                                            {{"pre_tokenizer", {{"add_prefix_space", true}}}});
  CHECK(tokenizer.add_prefix_space());
  const std::string learned =
      Learned(tokenizer, Encoded(tokenizer, ChatTemplate::kChatMl, Talk({{"assistant", "zq"}})));
  CHECK(learned.substr(learned.find('z')).substr(0, 12) == "zq<|im_end|>");
  CHECK(learned[learned.find('z') - 1] == '.');
}

TEST_CASE("what no template renders is refused with its line and place", "[text][chat]") {
  const auto refuses = [](const json& object, std::vector<std::string> parts) {
    parts.push_back("f: line 7");
    RequireError(ErrorCode::kData, parts,
                 [&] { ReadConversation(object, "messages", "f: line 7"); });
  };
  const json user = {{"role", "user"}, {"content", "a"}};
  const auto with = [&](const char* key, const json& value) {
    json message = user;
    message[key] = value;
    return json{{"messages", {user, message}}};
  };
  refuses(json::object(), {"no list \"messages\""});
  refuses({{"messages", json::array()}}, {"no list \"messages\""});
  refuses({{"messages", "text"}}, {"no list \"messages\""});
  refuses({{"messages", {user, "text"}}}, {"messages[1]", "string"});
  refuses({{"messages", {{{"role", "user"}}}}}, {"messages[0]", "no \"content\""});
  refuses(with("content", nullptr), {"messages[1]", "\"content\" is null"});
  refuses(with("content", json::array({{{"type", "text"}}})), {"\"content\" is array"});
  refuses(with("role", ""), {"\"role\" is empty"});
  refuses(with("weight", 1), {"\"weight\" is 1", "of an assistant, 1"});
  refuses(with("weight", 0.5), {"\"weight\" is 0.5"});
  refuses(with("tool_calls", json::array({1})), {"messages[1]", "\"tool_calls\""});
  refuses({{"messages", {user}}, {"tools", {1}}}, {"\"tools\""});
  CHECK(
      ReadConversation({{"messages", {user}}, {"tools", json::array()}, {"id", 3}}, "messages", "")
          .size() == 1);
}

TEST_CASE("tokens that do not have the text's bytes are refused", "[text][chat]") {
  json stripping = text::ReadTestData("tokenizer.json")["added_tokens"];
  stripping[0]["content"] = "<think>";
  stripping[0]["special"] = false;
  stripping[0]["rstrip"] = true;
  const Tokenizer tokenizer = TokenizerWith({}, {{"added_tokens", stripping}});
  RequireError(ErrorCode::kData, {"f: line 7", "strip white space"}, [&] {
    Encoded(tokenizer, ChatTemplate::kPlain, Talk({{"assistant", "<think>  a"}}));
  });
}

}  // namespace
}  // namespace millrace
