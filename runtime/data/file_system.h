// The system calls that change files, behind one table, so that a test can stop, tear or fail each
// of them; and the few things that everyone builds from them. Reading is input_file.h.
//
// Durability  Data is on disk after Sync of its file; a name is on disk after SyncFolder of its
//             folder. Rename replaces its target at once or not at all.
// Errors      The virtual calls are the system's: -1 and errno (FileSystem::Write may write less
//             than asked). The free functions and OutputFile throw Error(kIo) with path and cause.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace millrace {

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  virtual int Create(
      const std::string& path);  // an empty file, open for writing; replaces the old content
  virtual int OpenAppend(const std::string& path);  // created if missing; Append writes at its end
  virtual ssize_t Write(int fd, const void* data, size_t bytes, int64_t offset);
  virtual ssize_t Append(int fd, const void* data, size_t bytes);
  virtual int Reserve(int fd,
                      int64_t bytes);  // disk space for the file's first `bytes`; its size may grow
  virtual int Resize(int fd, int64_t bytes);
  virtual int Sync(int fd);
  virtual int Close(int fd);
  virtual int Rename(const std::string& from, const std::string& to);
  virtual int MakeFolder(const std::string& path);
  virtual int SyncFolder(const std::string& path);
  virtual int RemoveFile(const std::string& path);
  virtual int RemoveFolder(const std::string& path);  // an empty one

  static FileSystem& Posix();  // the real one; has no state
};

// A file being written. Not yet durable, nor complete, until Sync has returned.
class OutputFile {
 public:
  OutputFile(FileSystem& files, std::string path);
  ~OutputFile();  // closes; what was written stays
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::string& path() const noexcept { return path_; }

  // Takes the disk space of the whole file now, so that a full disk is found before hours of
  // writing rather than after. Does nothing where the file system cannot.
  void Reserve(int64_t bytes);
  void Write(int64_t offset, const void* data, int64_t bytes);
  void SyncAndClose();

 private:
  [[noreturn]] void Fail(const char* what, int error) const;

  FileSystem& files_;
  std::string path_;
  int fd_;
};

void MakeFolder(FileSystem& files, const std::string& path);  // and its parents; existing is fine
void SyncFolder(FileSystem& files, const std::string& path);
void RemoveTree(FileSystem& files,
                const std::string& path);  // a link is removed, not followed; missing is fine
void Rename(FileSystem& files, const std::string& from,
            const std::string& to);  // then syncs the folder of `to`

// `path` holds its old content or `text`, whole, at any moment; durable on return. One
// writer per path at a time.
void WriteFileAtomically(FileSystem& files, const std::string& path, std::string_view text);

// Error(kIo) "cannot WHAT PATH: " and what the errno says.
[[noreturn]] void ThrowIo(const char* what, const std::string& path, int error);

// The folder of a path: "a/b" -> "a", "b" -> ".".
std::string FolderOf(const std::string& path);

}  // namespace millrace
