#include "runtime/picture/page.h"

#include <fmt/core.h>

#include "runtime/base/json.h"
#include "runtime/picture/html.h"
#include "runtime/picture/page_assets.h"

namespace millrace {
namespace {

using nlohmann::json;

json DataJson(const Page& page) {
  json steps = json::object(), pictures = json::array();
  for (const auto& [name, step] : page.steps) steps[name] = StepPictureJson(step);
  for (const Picture& p : page.pictures)
    pictures.push_back({{"kind", p.kind == Picture::Kind::kMemoryMap ? "memory" : "timeline"},
                        {"at", p.at},
                        {"step", p.step},
                        {"until", p.until},
                        {"text", p.text}});
  return {{"steps", std::move(steps)}, {"pictures", std::move(pictures)}, {"report", page.report}};
}

// JSON inside a script element: "<" is written as an escape, so that no string can end the element.
std::string Embeddable(const std::string& text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) c == '<' ? out += "\\u003c" : out += c;
  return out;
}

}  // namespace

std::string_view PictureScript() { return kPictureScript; }

std::string PageHtml(const Page& page) {
  return fmt::format(R"(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src &#39;none&#39;; style-src &#39;unsafe-inline&#39;; script-src &#39;unsafe-inline&#39;">
<title>{}</title>
<style>
{}</style>
</head>
<body>
<header>
{}<button id="theme" type="button" title="Light or dark">◑</button>
</header>
<main>
{}</main>
<div id="tip" role="status"></div>
<script id="data" type="application/json">{}</script>
<script>{}{}</script>
</body>
</html>
)",
                     HtmlText(page.title), kPageStyle, page.header, page.main,
                     Embeddable(DumpJson(DataJson(page), {.replace = true})), kPictureScript,
                     page.script);
}

}  // namespace millrace
