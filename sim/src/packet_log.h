#pragma once

#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace bentpipe
{

/// The direction of a packet on the path, as numbered in the log.
enum class Direction : uint8_t
{
    kForward = 0,
    kReturn = 1,
};

/// An event of a packet: its number in the log, and the name of its counter in a direction's truth.
///
/// Impairments declare their own events, with numbers from 4 on. When an event drops the packet, the name of its counter begins with
/// `dropped_`.
struct PacketEvent
{
    uint8_t number;
    const char* counter;
};

constexpr PacketEvent kEnqueue{0, "packets_in"};
constexpr PacketEvent kDropQueue{1, "dropped_queue"};
constexpr PacketEvent kDropLoss{2, "dropped_loss"};
constexpr PacketEvent kDeliver{3, "packets_out"};

/// One record of the log, little-endian, as on disk.
struct PacketRecord
{
    uint64_t time_ns;  ///< time since the origin
    uint32_t id;
    uint32_t lateness_ns;  ///< of a delivery: real time minus `time_ns`; otherwise 0
    uint8_t direction;
    uint8_t event;
    uint16_t queue_packets;  ///< packets that wait in this direction's queue, without this packet
    uint16_t ip_length;
    uint16_t transport_checksum;
};
static_assert(sizeof(PacketRecord) == 24);

/// Writes the per-packet log in its own thread, so that a slow disk never makes the link late.
class PacketLog
{
  public:
    /// Creates the file; throws UserError.
    explicit PacketLog(const std::string& path);
    ~PacketLog();
    PacketLog(const PacketLog&) = delete;
    PacketLog& operator=(const PacketLog&) = delete;

    /// Writes the file's header with the wall-clock time of time 0, in ns since 1970.
    void Begin(uint64_t origin_unix_ns);

    void Append(const PacketRecord& record);

    /// Writes the remaining records and closes the file. Returns false when not all records could be written.
    bool Close();

  private:
    using Block = std::vector<uint8_t>;

    void Hand();
    void Write();

    std::FILE* file_;
    Block block_;
    std::mutex mutex_;
    std::condition_variable work_;
    std::deque<Block> blocks_;
    bool closing_ = false;
    bool complete_ = true;
    std::thread writer_;
};

}  // namespace bentpipe
