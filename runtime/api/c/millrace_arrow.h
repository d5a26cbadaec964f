/* The structs of Arrow's C data and C stream interfaces that mr_rows_open speaks of, written from
 * their specification (arrow.apache.org/docs/format): memory layout, names and guards are the
 * standard's, so that a program which has Arrow's own header may include both, in any order. */
#ifndef MILLRACE_ARROW_H_
#define MILLRACE_ARROW_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef ARROW_C_DATA_INTERFACE
#define ARROW_C_DATA_INTERFACE

#define ARROW_FLAG_DICTIONARY_ORDERED 1
#define ARROW_FLAG_NULLABLE 2
#define ARROW_FLAG_MAP_KEYS_SORTED 4

struct ArrowSchema {
  const char* format;   /* the type: "+s" a struct, "+l" a list, "i" int32, "f" float32, ... */
  const char* name;     /* of a column; may be NULL */
  const char* metadata; /* binary; may be NULL */
  int64_t flags;
  int64_t n_children;
  struct ArrowSchema** children;
  struct ArrowSchema* dictionary; /* NULL: values are not indices */
  /* Frees what the struct refers to, not the struct, and sets itself to NULL: released. */
  void (*release)(struct ArrowSchema*);
  void* private_data; /* the producer's */
};

struct ArrowArray {
  int64_t length;     /* in elements, behind `offset` of them */
  int64_t null_count; /* -1: not known */
  int64_t offset;
  int64_t n_buffers;
  int64_t n_children;
  const void** buffers; /* the first is a bit for each element, 0 where it is null; NULL: none is */
  struct ArrowArray** children;
  struct ArrowArray* dictionary;
  void (*release)(struct ArrowArray*); /* as a schema's */
  void* private_data;
};

#endif /* ARROW_C_DATA_INTERFACE */

#ifndef ARROW_C_STREAM_INTERFACE
#define ARROW_C_STREAM_INTERFACE

struct ArrowArrayStream {
  /* 0, or an errno. What they give is the caller's, to be released; at the stream's end get_next
   * gives an array that is released. */
  int (*get_schema)(struct ArrowArrayStream*, struct ArrowSchema* out);
  int (*get_next)(struct ArrowArrayStream*, struct ArrowArray* out);
  const char* (*get_last_error)(struct ArrowArrayStream*); /* NULL: nothing is said */
  void (*release)(struct ArrowArrayStream*);               /* as a schema's */
  void* private_data;
};

#endif /* ARROW_C_STREAM_INTERFACE */

#ifdef __cplusplus
}
#endif

#endif /* MILLRACE_ARROW_H_ */
