// What the endpoint answers where it cannot do what it is asked for, in the form that OpenAI's
// clients read: {"error": {"message", "type", "param", "code"}}.
#pragma once

#include <string>

namespace millrace {

struct ApiError {
  // 400 the request is wrong, whatever is tried again; so are 401, 403, 404, 405 and 413;
  // 429 the queue is full; 500 a fault of ours; 503 no token can be made now. Clients try 429 and
  // 5xx again.
  int status = 400;
  std::string message = {};  // for people: the field, its value, what is allowed
  std::string param = {};    // the field; "": none
  std::string code = {};     // stable, for programs; "": none
  int retry_after_s = 0;     // 0: not said
  std::string allow = {};    // of 405: the methods that the path takes
};

std::string ErrorJson(const ApiError& error);

}  // namespace millrace
