#include "packet_log.h"

#include "user_error.h"

#include <bit>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

namespace bentpipe
{

namespace
{

static_assert(std::endian::native == std::endian::little, "the log is little-endian");

constexpr std::string_view kMagic = "BPLINK1\n";
constexpr size_t kBlockBytes = 2730 * sizeof(PacketRecord);  // just below 64 KiB

}  // namespace

PacketLog::PacketLog(const std::string& path)
    : file_(std::fopen(path.c_str(), "wbe"))
{
    if (file_ == nullptr)
    {
        throw UserError("The packet log '" + path + "' can't be written: " + std::strerror(errno) + ".");
    }
    block_.reserve(kBlockBytes);
    writer_ = std::thread(&PacketLog::Write, this);
}

PacketLog::~PacketLog()
{
    Close();
}

void
PacketLog::Begin(uint64_t origin_unix_ns)
{
    block_.insert(block_.end(), kMagic.begin(), kMagic.end());
    const auto* bytes = reinterpret_cast<const uint8_t*>(&origin_unix_ns);
    block_.insert(block_.end(), bytes, bytes + sizeof(origin_unix_ns));
}

void
PacketLog::Append(const PacketRecord& record)
{
    const auto* bytes = reinterpret_cast<const uint8_t*>(&record);
    block_.insert(block_.end(), bytes, bytes + sizeof(record));
    if (block_.size() >= kBlockBytes)
    {
        Hand();
    }
}

void
PacketLog::Hand()
{
    Block full = std::exchange(block_, Block());
    block_.reserve(kBlockBytes);
    {
        const std::lock_guard lock(mutex_);
        blocks_.push_back(std::move(full));
    }
    work_.notify_one();
}

bool
PacketLog::Close()
{
    if (!writer_.joinable())
    {
        return complete_;
    }
    Hand();
    {
        const std::lock_guard lock(mutex_);
        closing_ = true;
    }
    work_.notify_one();
    writer_.join();
    complete_ = std::fclose(file_) == 0 && complete_;
    return complete_;
}

void
PacketLog::Write()
{
    std::unique_lock lock(mutex_);
    while (true)
    {
        work_.wait(lock, [this] { return closing_ || !blocks_.empty(); });
        if (blocks_.empty())
        {
            return;
        }
        const Block block = std::move(blocks_.front());
        blocks_.pop_front();
        lock.unlock();
        const bool written = std::fwrite(block.data(), 1, block.size(), file_) == block.size();
        lock.lock();
        complete_ = complete_ && written;
    }
}

}  // namespace bentpipe
