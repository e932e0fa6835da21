#include "raw_device.h"

#include "ns3/core-module.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <linux/if_ether.h>
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
    FrameReader(size_t max_frame, ReceiveCounters& counters, const std::vector<Subnet>& foreign)
        : max_frame_(max_frame),
          counters_(counters),
          foreign_(foreign)
    {
    }

  private:
    Data DoRead() override;
    bool CountAncillary(msghdr& message);
    bool IsSpoofed(const uint8_t* frame, size_t length) const;

    size_t max_frame_;
    ReceiveCounters& counters_;
    const std::vector<Subnet>& foreign_;
};

/// Whether the bytes at `address` lie in the subnet.
bool
Contains(const Subnet& subnet, const uint8_t* address)
{
    const size_t whole = subnet.prefix / 8;
    if (std::memcmp(subnet.address.data(), address, whole) != 0)
    {
        return false;
    }
    const unsigned rest = subnet.prefix % 8;
    return rest == 0 || ((subnet.address[whole] ^ address[whole]) >> (8 - rest)) == 0;
}

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
    const bool tagged = CountAncillary(message);
    if (tagged || IsSpoofed(buffer, static_cast<size_t>(length)))
    {
        ++counters_.spoofed;
        std::free(buffer);
        return {nullptr, -1};
    }
    return {buffer, length};
}

bool
FrameReader::IsSpoofed(const uint8_t* frame, size_t length) const
{
    if (length < kEthernetHeaderBytes)
    {
        return false;
    }
    const unsigned type = frame[12] << 8 | frame[13];
    const bool v4 = type == ETH_P_IP;
    if ((!v4 && type != ETH_P_IPV6) || length < kEthernetHeaderBytes + (v4 ? 20 : 40))
    {
        return false;
    }
    const uint8_t* source = frame + kEthernetHeaderBytes + (v4 ? 12 : 8);
    const size_t size = v4 ? 4 : 16;
    return std::any_of(foreign_.begin(), foreign_.end(), [&](const Subnet& subnet) {
        return subnet.address.size() == size && Contains(subnet, source);
    });
}

/// Whether the frame came with a VLAN tag, which the kernel has removed. In a lane no frame has a VLAN tag.
bool
FrameReader::CountAncillary(msghdr& message)
{
    bool tagged = false;
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
            tagged = (auxiliary.tp_status & TP_STATUS_VLAN_VALID) != 0;
        }
    }
    return tagged;
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

void
RawDevice::SetForeign(std::vector<Subnet> subnets)
{
    foreign_ = std::move(subnets);
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
    return ns3::Create<FrameReader>(GetMtu() + kEthernetHeaderBytes, counters_, foreign_);
}

}  // namespace bentpipe
