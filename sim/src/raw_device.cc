#include "raw_device.h"

#include "ns3/core-module.h"

#include <array>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <linux/if_packet.h>
#include <sys/socket.h>
#include <time.h>

namespace bentpipe
{

namespace
{

constexpr size_t kEthernetHeaderBytes = 14;

int64_t
Nanoseconds(const timespec& time)
{
    return static_cast<int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

/// Reads one frame per call; runs in the reader's thread.
class FrameReader : public ns3::FdReader
{
  public:
    FrameReader(size_t max_frame, ReceiveCounters& counters)
        : max_frame_(max_frame),
          counters_(counters)
    {
    }

  private:
    Data DoRead() override;
    void CountAncillary(msghdr& message);

    size_t max_frame_;
    ReceiveCounters& counters_;
};

ns3::FdReader::Data
FrameReader::DoRead()
{
    // FdNetDevice releases the buffer with free().
    auto* buffer = static_cast<uint8_t*>(std::malloc(max_frame_));
    std::array<char, 256> control;
    iovec vector{buffer, max_frame_};
    msghdr message{};
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t length = recvmsg(m_fd, &message, 0);
    const bool too_long = length > 0 && (message.msg_flags & MSG_TRUNC) != 0;
    if (length <= 0 || too_long)
    {
        counters_.too_long += too_long ? 1 : 0;
        std::free(buffer);
        return {nullptr, -1};
    }
    CountAncillary(message);
    return {buffer, length};
}

void
FrameReader::CountAncillary(msghdr& message)
{
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header))
    {
        if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_TIMESTAMPNS)
        {
            timespec received{};
            timespec now{};
            std::memcpy(&received, CMSG_DATA(header), sizeof(received));
            clock_gettime(CLOCK_REALTIME, &now);
            counters_.lateness.Add(Nanoseconds(now) - Nanoseconds(received));
        }
        else if (header->cmsg_level == SOL_PACKET && header->cmsg_type == PACKET_AUXDATA)
        {
            tpacket_auxdata auxiliary{};
            std::memcpy(&auxiliary, CMSG_DATA(header), sizeof(auxiliary));
            counters_.checksum_missing += (auxiliary.tp_status & TP_STATUS_CSUMNOTREADY) != 0 ? 1 : 0;
        }
    }
}

}  // namespace

ns3::Time
RealtimeNow()
{
    return ns3::DynamicCast<ns3::RealtimeSimulatorImpl>(ns3::Simulator::GetImplementation())->RealtimeNow();
}

void
RawDevice::SetSentCallback(SentCallback callback)
{
    sent_ = std::move(callback);
}

const ReceiveCounters&
RawDevice::Counters() const
{
    return counters_;
}

bool
RawDevice::SendFrom(ns3::Ptr<ns3::Packet> packet,
                    const ns3::Address& source,
                    const ns3::Address& destination,
                    uint16_t protocol)
{
    const PacketFacts facts = Describe(packet);
    const ns3::Time lateness = RealtimeNow() - ns3::Simulator::Now();
    const bool taken = FdNetDevice::SendFrom(packet, source, destination, protocol);
    sent_(facts, lateness, taken);
    return taken;
}

ns3::Ptr<ns3::FdReader>
RawDevice::DoCreateFdReader()
{
    return ns3::Create<FrameReader>(GetMtu() + kEthernetHeaderBytes, counters_);
}

}  // namespace bentpipe
