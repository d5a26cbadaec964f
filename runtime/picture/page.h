// A page in one file that fetches nothing: header and sections as HTML, steps as JSON, and a script
// that draws each step's memory map and timeline on canvases (page/*.js). A browser refuses
// whatever the page might try to load.
//
// Invariant  Data cannot leave their script element. What of them is not UTF-8 becomes replacement
//            characters. The caller escapes what is in its HTML (html.h).
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/picture/step_picture.h"

namespace millrace {

struct Picture {
  enum class Kind { kMemoryMap, kTimeline };
  Kind kind = Kind::kTimeline;
  std::string at;    // id of the element that it is added to
  std::string step;  // by name
  double until = 0;  // of a timeline, its right end in seconds; 0: the end of the step
  std::string text;  // of a timeline, beneath its legend
};

struct Page {
  std::string title;         // text
  std::string header, main;  // HTML
  std::map<std::string, StepPicture> steps;
  std::vector<Picture> pictures;
  nlohmann::json report;  // for `script`
  std::string script;     // runs behind the pictures'
};

std::string PageHtml(const Page& page);

// What runs on every page.
std::string_view PictureScript();

}  // namespace millrace
