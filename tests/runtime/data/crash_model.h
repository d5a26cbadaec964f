// A FileSystem that knows what a crash of the machine would leave on disk: before every changing
// call it hands the caller the two harshest states that POSIX allows at that moment.
//
//   strict   Only what was synced exists: a name since its folder's sync, data since its file's
//   sync.
//   loose    Every name that was made exists, every removal happened, but data that was not synced
//   reads as zeros.
//
// Everything is executed for real below `root`; the model follows by path.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "runtime/data/file_system.h"
#include "tests/runtime/data/temp_dir.h"

namespace millrace {

class CrashModel final : public FileSystem {
 public:
  // `root` and what is in it are durable.
  explicit CrashModel(const std::string& root) : root_(root), top_(Adopt(root)) {}

  // Called before each changing call, and by the test once more at the end.
  std::function<void(const std::string& call)> before_call = [](const std::string&) {};

  void WriteStrict(const std::string& target) const { WriteNode(*top_, target, /*durable=*/true); }
  void WriteLoose(const std::string& target) const { WriteNode(*top_, target, /*durable=*/false); }

  int Create(const std::string& path) override {
    before_call("create " + path);
    const int fd = FileSystem::Create(path);
    if (fd < 0) return fd;
    std::shared_ptr<Node>& node = Parent(path).live[NameOf(path)];
    if (node == nullptr)
      node = std::make_shared<Node>();  // an existing file is emptied: its old data is not safe
    node->synced.clear();
    paths_[fd] = path;
    open_[fd] = node;
    return fd;
  }
  ssize_t Write(int fd, const void* data, size_t bytes, int64_t offset) override {
    before_call("write " + paths_[fd]);
    return FileSystem::Write(fd, data, bytes, offset);
  }
  int Reserve(int, int64_t) override { return 0; }
  int Sync(int fd) override {
    before_call("sync " + paths_[fd]);
    open_[fd]->synced = ReadBytes(paths_[fd]);
    return 0;
  }
  int Rename(const std::string& from, const std::string& to) override {
    before_call("rename " + from + " -> " + to);
    if (FileSystem::Rename(from, to) != 0) return -1;
    std::shared_ptr<Node> node = Parent(from).live.at(NameOf(from));
    Parent(from).live.erase(NameOf(from));
    Parent(to).live[NameOf(to)] = std::move(node);
    return 0;
  }
  int MakeFolder(const std::string& path) override {
    before_call("make_folder " + path);
    if (FileSystem::MakeFolder(path) != 0) return -1;
    Parent(path).live[NameOf(path)] =
        std::make_shared<Node>(Node{.is_folder = true, .live = {}, .durable = {}, .synced = ""});
    return 0;
  }
  int SyncFolder(const std::string& path) override {
    before_call("sync_folder " + path);
    Node& folder = Find(path);
    folder.durable = folder.live;
    return 0;
  }
  int RemoveFile(const std::string& path) override {
    before_call("remove_file " + path);
    if (FileSystem::RemoveFile(path) != 0) return -1;
    Parent(path).live.erase(NameOf(path));
    return 0;
  }
  int RemoveFolder(const std::string& path) override {
    before_call("remove_folder " + path);
    if (FileSystem::RemoveFolder(path) != 0) return -1;
    Parent(path).live.erase(NameOf(path));
    return 0;
  }

 private:
  struct Node {
    bool is_folder = false;
    std::map<std::string, std::shared_ptr<Node>> live, durable;  // a folder's entries
    std::string synced;                                          // a file's data
  };

  static std::string NameOf(const std::string& path) {
    return std::filesystem::path(path).filename().string();
  }

  static std::shared_ptr<Node> Adopt(const std::string& path) {
    auto node = std::make_shared<Node>();
    node->is_folder = std::filesystem::is_directory(path);
    if (!node->is_folder) {
      node->synced = ReadBytes(path);
      return node;
    }
    for (const auto& entry : std::filesystem::directory_iterator(path))
      node->live[entry.path().filename().string()] = Adopt(entry.path().string());
    node->durable = node->live;
    return node;
  }

  Node& Find(const std::string& path) {
    std::shared_ptr<Node> node = top_;
    for (const auto& part : std::filesystem::path(path).lexically_relative(root_))
      if (part != ".") node = node->live.at(part.string());
    return *node;
  }
  Node& Parent(const std::string& path) { return Find(FolderOf(path)); }

  static void WriteNode(const Node& node, const std::string& target, bool durable) {
    std::filesystem::create_directory(target);
    for (const auto& [name, child] : durable ? node.durable : node.live) {
      const std::string path = target + "/" + name;
      if (child->is_folder)
        WriteNode(*child, path, durable);
      else
        WriteBytes(path, child->synced.empty() ? std::string(64, '\0') : child->synced);
    }
  }

  std::string root_;
  std::shared_ptr<Node> top_;
  std::map<int, std::string> paths_;
  std::map<int, std::shared_ptr<Node>> open_;
};

}  // namespace millrace
