#include "raw_device.h"

#include "clock.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <sys/uio.h>
#include <unistd.h>

namespace bentpipe
{

namespace
{

constexpr size_t kAddressBytes = 6;
constexpr size_t kHeaderBytes = 14;    // of Ethernet
constexpr size_t kLargestFrame = 9018;  // bytes: with the largest MTU that FindInterface takes
constexpr size_t kBatch = 32;           // frames of one system call

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

ns3::Mac48Address
AddressAt(const uint8_t* bytes)
{
    ns3::Mac48Address address;
    address.CopyFrom(bytes);
    return address;
}

}  // namespace

RawDevice::~RawDevice()
{
    Close();
}

void
RawDevice::Open(ns3::Ptr<EventLoop> loop, const Interface& interface, const OwnAddresses& own, std::vector<Subnet> foreign)
{
    loop_ = std::move(loop);
    foreign_ = std::move(foreign);
    SetMtu(interface.mtu);
    fd_ = OpenRawSocket(interface, own);
}

void
RawDevice::SetSentCallback(SentCallback callback)
{
    sent_ = std::move(callback);
}

void
RawDevice::Start()
{
    loop_->Watch(fd_, [this] { Read(); });
}

void
RawDevice::Close()
{
    if (fd_ < 0)
    {
        return;
    }
    loop_->Forget(fd_);
    counts_.kernel_drops = ReadKernelDrops(fd_);
    close(fd_);
    fd_ = -1;
}

const SocketCounts&
RawDevice::Counts() const
{
    return counts_;
}

const Histogram&
RawDevice::Lateness() const
{
    return lateness_;
}

void
RawDevice::Read()
{
    static std::array<std::array<uint8_t, kLargestFrame>, kBatch> frames;
    static std::array<std::array<char, 256>, kBatch> controls;
    std::array<iovec, kBatch> vectors;
    std::array<mmsghdr, kBatch> messages{};
    for (size_t i = 0; i < kBatch; ++i)
    {
        vectors[i] = {frames[i].data(), kHeaderBytes + GetMtu()};
        messages[i].msg_hdr.msg_iov = &vectors[i];
        messages[i].msg_hdr.msg_iovlen = 1;
        messages[i].msg_hdr.msg_control = controls[i].data();
        messages[i].msg_hdr.msg_controllen = controls[i].size();
    }
    const int got = recvmmsg(fd_, messages.data(), kBatch, MSG_DONTWAIT, nullptr);
    const ns3::Time since = loop_->RealNow() - ns3::Simulator::Now();
    for (int i = 0; i < got; ++i)
    {
        const uint8_t* frame = frames[i].data();
        const size_t length = messages[i].msg_len;
        if (Discard(messages[i].msg_hdr, frame, length))
        {
            continue;
        }
        const auto packet = ns3::Create<ns3::Packet>(frame + kHeaderBytes, static_cast<uint32_t>(length - kHeaderBytes));
        const auto protocol = static_cast<uint16_t>(frame[12] << 8 | frame[13]);
        ns3::Simulator::ScheduleWithContext(GetNode()->GetId(),
                                            since,
                                            &ns3::SimpleNetDevice::Receive,
                                            ns3::Ptr<ns3::SimpleNetDevice>(this),
                                            packet,
                                            protocol,
                                            AddressAt(frame),
                                            AddressAt(frame + kAddressBytes));
    }
}

/// Counts a frame. Returns true when it does not belong to the path. In a lane no frame has a VLAN tag, which the kernel has removed.
bool
RawDevice::Discard(msghdr& message, const uint8_t* frame, size_t length)
{
    if ((message.msg_flags & MSG_TRUNC) != 0)
    {
        ++counts_.too_long;
        return true;
    }
    bool tagged = false;
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header))
    {
        if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_TIMESTAMPNS)
        {
            timespec received{};
            std::memcpy(&received, CMSG_DATA(header), sizeof(received));
            lateness_.Add(ReadClock(CLOCK_REALTIME) - Nanoseconds(received));
        }
        else if (header->cmsg_level == SOL_PACKET && header->cmsg_type == PACKET_AUXDATA)
        {
            tpacket_auxdata auxiliary{};
            std::memcpy(&auxiliary, CMSG_DATA(header), sizeof(auxiliary));
            counts_.checksum_missing += (auxiliary.tp_status & TP_STATUS_CSUMNOTREADY) != 0 ? 1 : 0;
            tagged = (auxiliary.tp_status & TP_STATUS_VLAN_VALID) != 0;
        }
    }
    if (tagged || IsSpoofed(frame, length))
    {
        ++counts_.spoofed;
        return true;
    }
    return length < kHeaderBytes;
}

bool
RawDevice::IsSpoofed(const uint8_t* frame, size_t length) const
{
    if (length < kHeaderBytes)
    {
        return false;
    }
    const unsigned type = frame[12] << 8 | frame[13];
    const bool v4 = type == ETH_P_IP;
    if ((!v4 && type != ETH_P_IPV6) || length < kHeaderBytes + (v4 ? 20 : 40))
    {
        return false;
    }
    const uint8_t* source = frame + kHeaderBytes + (v4 ? 12 : 8);
    const size_t size = v4 ? 4 : 16;
    return std::any_of(foreign_.begin(), foreign_.end(), [&](const Subnet& subnet) {
        return subnet.address.size() == size && Contains(subnet, source);
    });
}

bool
RawDevice::SendFrom(ns3::Ptr<ns3::Packet> packet,
                    const ns3::Address& source,
                    const ns3::Address& destination,
                    uint16_t protocol)
{
    const PacketFacts facts = Describe(packet);
    const ns3::Time lateness = loop_->RealNow() - ns3::Simulator::Now();
    std::array<uint8_t, kLargestFrame> frame;
    const size_t length = kHeaderBytes + packet->GetSize();
    bool taken = false;
    if (fd_ >= 0 && length <= frame.size())
    {
        ns3::Mac48Address::ConvertFrom(destination).CopyTo(frame.data());
        ns3::Mac48Address::ConvertFrom(source).CopyTo(frame.data() + kAddressBytes);
        frame[12] = static_cast<uint8_t>(protocol >> 8);
        frame[13] = static_cast<uint8_t>(protocol);
        packet->CopyData(frame.data() + kHeaderBytes, packet->GetSize());
        taken = write(fd_, frame.data(), length) == static_cast<ssize_t>(length);
    }
    sent_(facts, lateness, taken);
    return taken;
}

}  // namespace bentpipe
