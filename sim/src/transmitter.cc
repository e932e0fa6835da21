#include "transmitter.h"

#include "channel.h"
#include "dual_queue.h"

#include "ns3/codel-queue-disc.h"
#include "ns3/fifo-queue-disc.h"
#include "ns3/fq-codel-queue-disc.h"
#include "ns3/hash.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace bentpipe
{

namespace
{

constexpr int64_t kPerBit = 1'000'000'000;  // `remaining_` counts bit/s × ns
constexpr uint32_t kQuantum = 1514;         // bytes: the default of Linux for an MTU of 1500
constexpr uint8_t kEcn = 0x03;
constexpr size_t kV4Header = 20;
constexpr size_t kV6Header = 40;

using Head = std::array<uint8_t, 64>;

Head
ReadHead(ns3::Ptr<const ns3::Packet> packet)
{
    Head head{};
    packet->CopyData(head.data(), head.size());
    return head;
}

bool
IsV4(const Head& head)
{
    return head[0] >> 4 == 4;
}

uint8_t
TrafficClass(const Head& head)
{
    return IsV4(head) ? head[1] : static_cast<uint8_t>(head[0] << 4 | head[1] >> 4);
}

/// The ones' complement sum that a checksum field protects (RFC 1071).
uint16_t
HeaderChecksum(const uint8_t* bytes, size_t size)
{
    uint32_t sum = 0;
    for (size_t at = 0; at + 1 < size; at += 2)
    {
        sum += static_cast<uint32_t>(bytes[at]) << 8 | bytes[at + 1];
    }
    sum = (sum & 0xFFFF) + (sum >> 16);
    return static_cast<uint16_t>(~(sum + (sum >> 16)));
}

}  // namespace

WaitingPacket::WaitingPacket(ns3::Ptr<ns3::Packet> packet,
                             ns3::Mac48Address from,
                             ns3::Mac48Address to,
                             uint16_t protocol,
                             ns3::Time stopped)
    : ns3::QueueDiscItem(packet, to, protocol),
      from_(from),
      stopped_(stopped)
{
}

void
WaitingPacket::AddHeader()
{
}

bool
WaitingPacket::Mark()
{
    std::vector<uint8_t> bytes(GetPacket()->GetSize());
    GetPacket()->CopyData(bytes.data(), static_cast<uint32_t>(bytes.size()));
    if (bytes.size() < kV4Header || (TrafficClass(ReadHead(GetPacket())) & kEcn) == 0)
    {
        return false;
    }
    if (bytes[0] >> 4 == 4)
    {
        bytes[1] |= kEcn;
        const size_t length = std::min<size_t>(4 * (bytes[0] & 0x0F), bytes.size());
        bytes[10] = bytes[11] = 0;
        const uint16_t checksum = HeaderChecksum(bytes.data(), length);
        bytes[10] = static_cast<uint8_t>(checksum >> 8);
        bytes[11] = static_cast<uint8_t>(checksum);
    }
    else
    {
        bytes[1] |= kEcn << 4;
    }
    // The packet stays the same object, so that it keeps its id.
    GetPacket()->RemoveAtStart(GetPacket()->GetSize());
    GetPacket()->AddAtEnd(ns3::Create<ns3::Packet>(bytes.data(), static_cast<uint32_t>(bytes.size())));
    return true;
}

uint32_t
WaitingPacket::Hash(uint32_t perturbation) const
{
    // Protocol, both addresses and both ports. IPv6 extension headers count as ports, which is the same for all packets of a flow.
    const Head head = ReadHead(GetPacket());
    std::array<char, 41> key{};
    char* end = key.data();
    const size_t ports = IsV4(head) ? 4 * (head[0] & 0x0F) : kV6Header;
    *end++ = static_cast<char>(head[IsV4(head) ? 9 : 6]);
    const size_t addresses = IsV4(head) ? 12 : 8;
    end = std::copy(head.begin() + addresses, head.begin() + (IsV4(head) ? kV4Header : kV6Header), end);
    end = std::copy(head.begin() + std::min(ports, head.size() - 4), head.begin() + std::min(ports, head.size() - 4) + 4, end);
    return ns3::Hash32(key.data(), static_cast<size_t>(end - key.data())) ^ perturbation;
}

bool
WaitingPacket::GetUint8Value(Uint8Values field, uint8_t& value) const
{
    value = TrafficClass(ReadHead(GetPacket()));
    return field == IP_DSFIELD;
}

ns3::Mac48Address
WaitingPacket::From() const
{
    return from_;
}

ns3::Time
WaitingPacket::Stopped() const
{
    return stopped_;
}

const std::vector<std::string>&
QueueDisciplines()
{
    static const std::vector<std::string> names{"drop-tail", "codel", "fq-codel", "dualpi2"};
    return names;
}

ns3::Ptr<ns3::QueueDisc>
MakeQueue(const std::string& discipline, uint32_t packets)
{
    ns3::Ptr<ns3::QueueDisc> queue;
    if (discipline == "codel")
    {
        queue = ns3::CreateObject<ns3::CoDelQueueDisc>();
        queue->SetAttribute("UseEcn", ns3::BooleanValue(true));
    }
    else if (discipline == "fq-codel")
    {
        const auto fair = ns3::CreateObject<ns3::FqCoDelQueueDisc>();
        fair->SetQuantum(kQuantum);  // without it, the queue would ask a traffic control layer for the MTU
        queue = fair;
        queue->SetAttribute("UseEcn", ns3::BooleanValue(true));
    }
    else if (discipline == "dualpi2")
    {
        queue = ns3::CreateObject<DualQueue>();
    }
    else
    {
        queue = ns3::CreateObject<ns3::FifoQueueDisc>();
    }
    queue->SetMaxSize(ns3::QueueSize(ns3::QueueSizeUnit::PACKETS, packets));
    queue->Initialize();
    return queue;
}

void
Transmitter::SetUp(ns3::Ptr<AsymmetricChannel> channel, ns3::Ptr<ns3::QueueDisc> queue, uint64_t data_rate)
{
    wire_ = channel;
    queue_ = queue;
    data_rate_ = data_rate;
    rate_ = data_rate;
    SetChannel(channel);
}

void
Transmitter::Assign(const DamaParameters& dama)
{
    dama_ = dama;
    requests_.assign(static_cast<size_t>(std::ceil(dama.grant_delay_s / dama.superframe_s)), Request());
    OnSuperframe();
}

bool
Transmitter::SendFrom(ns3::Ptr<ns3::Packet> packet, const ns3::Address& source, const ns3::Address& dest, uint16_t protocol)
{
    arrived_ += packet->GetSize();
    const auto item = ns3::Create<WaitingPacket>(packet,
                                                 ns3::Mac48Address::ConvertFrom(source),
                                                 ns3::Mac48Address::ConvertFrom(dest),
                                                 protocol,
                                                 Stopped());
    const bool taken = queue_->Enqueue(item);
    Begin();
    return taken;
}

void
Transmitter::SetDataRate(uint64_t data_rate)
{
    const bool runs = rate_ > 0 || !dama_;
    data_rate_ = data_rate;
    if (runs)
    {
        Run(data_rate);
    }
}

/// Sends bits at `rate` from now on.
void
Transmitter::Run(uint64_t rate)
{
    const ns3::Time now = ns3::Simulator::Now();
    if (current_ != nullptr)
    {
        remaining_ = std::max<int64_t>(0, remaining_ - static_cast<int64_t>(rate_) * (now - since_).GetNanoSeconds());
        busy_ += rate_ > 0 ? now - since_ : ns3::Time(0);
    }
    since_ = now;
    rate_ = rate;
    finish_.Cancel();
    if (current_ == nullptr)
    {
        Begin();
    }
    else if (rate_ > 0)
    {
        const auto left = static_cast<uint64_t>(remaining_);
        finish_ = ns3::Simulator::Schedule(ns3::NanoSeconds((left + rate_ - 1) / rate_), &Transmitter::Finish, this);
    }
}

void
Transmitter::Begin()
{
    // A transmitter that stands still leaves packets in the queue, where the discipline can still drop them.
    if (current_ != nullptr || rate_ == 0)
    {
        return;
    }
    current_ = ns3::StaticCast<WaitingPacket>(queue_->Dequeue());
    if (current_ != nullptr)
    {
        remaining_ = int64_t{8} * current_->GetSize() * kPerBit;
        since_ = ns3::Simulator::Now();
        Run(rate_);
    }
}

void
Transmitter::Finish()
{
    const ns3::Time now = ns3::Simulator::Now();
    busy_ += now - since_;
    since_ = now;
    wire_->Send(current_->GetPacket(),
                current_->GetProtocol(),
                ns3::Mac48Address::ConvertFrom(current_->GetAddress()),
                current_->From(),
                this);
    current_ = nullptr;
    Begin();
}

void
Transmitter::OnSuperframe()
{
    const double seconds = dama_->superframe_s;
    const double room = static_cast<double>(data_rate_) * seconds / 8;
    const double constant = static_cast<double>(dama_->cra) * seconds / 8;
    Request request;
    request.rate = std::min(arrived_, static_cast<double>(dama_->rbdc) * seconds / 8);
    if (dama_->vbdc)
    {
        const double waiting = queue_->GetNBytes() + (current_ != nullptr ? static_cast<double>(remaining_) / kPerBit / 8 : 0.0);
        request.volume = std::max(0.0, waiting - outstanding_);
    }
    arrived_ = 0.0;
    outstanding_ += request.volume;
    requests_.push_back(request);
    const Request grant = requests_.front();
    requests_.pop_front();
    outstanding_ -= grant.volume;
    // A rate that is not used in its superframe is lost; volume waits for the next superframe with room.
    const double volume = grant.volume + unserved_;
    const double usable = std::min(room, constant + grant.rate + volume);
    unserved_ = std::clamp(constant + grant.rate + volume - room, 0.0, volume);

    grant_used_.Cancel();
    if (usable > 0.0 && data_rate_ > 0)
    {
        stopped_ = Stopped();
        stopped_since_.reset();
        Run(data_rate_);
        if (usable < room)
        {
            grant_used_ = ns3::Simulator::Schedule(ns3::Seconds(usable * 8 / static_cast<double>(data_rate_)),
                                                   &Transmitter::OnGrantUsed,
                                                   this);
        }
    }
    else if (!stopped_since_)
    {
        OnGrantUsed();
    }
    superframe_ = ns3::Simulator::Schedule(ns3::Seconds(seconds), &Transmitter::OnSuperframe, this);
}

void
Transmitter::OnGrantUsed()
{
    Run(0);
    stopped_since_ = ns3::Simulator::Now();
}

ns3::Time
Transmitter::Stopped() const
{
    return stopped_since_ ? stopped_ + (ns3::Simulator::Now() - *stopped_since_) : stopped_;
}

bool
Transmitter::WaitedForGrant() const
{
    return dama_ && current_ != nullptr && Stopped() - current_->Stopped() >= ns3::Seconds(dama_->superframe_s);
}

ns3::Time
Transmitter::Busy() const
{
    return current_ != nullptr && rate_ > 0 ? busy_ + (ns3::Simulator::Now() - since_) : busy_;
}

bool
Transmitter::Transmitting() const
{
    return current_ != nullptr;
}

void
Transmitter::DoDispose()
{
    finish_.Cancel();
    grant_used_.Cancel();
    superframe_.Cancel();
    current_ = nullptr;
    queue_ = nullptr;
    wire_ = nullptr;
    SimpleNetDevice::DoDispose();
}

}  // namespace bentpipe
