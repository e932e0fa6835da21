#include "direction_truth.h"

#include "impairments.h"

#include <algorithm>

namespace bentpipe
{

using ns3::MakeCallback;
using ns3::Packet;
using ns3::Ptr;
using ns3::QueueDiscItem;
using ns3::Simulator;
using ns3::Time;

DirectionTruth::DirectionTruth(Direction direction, Ptr<ns3::QueueDisc> queue, Ptr<Transmitter> transmitter, PacketLog* log)
    : direction_(direction),
      queue_(queue),
      transmitter_(transmitter),
      log_(log)
{
    for (const PacketEvent& event : ImpairmentEvents())
    {
        counts_.impaired[event.counter] = 0;
    }
    queue_->TraceConnectWithoutContext("Enqueue", MakeCallback(&DirectionTruth::OnEnqueue, this));
    queue_->TraceConnectWithoutContext("Dequeue", MakeCallback(&DirectionTruth::OnDequeue, this));
    queue_->TraceConnectWithoutContext("DropBeforeEnqueue", MakeCallback(&DirectionTruth::OnQueueRefusal, this));
    queue_->TraceConnectWithoutContext("DropAfterDequeue", MakeCallback(&DirectionTruth::OnQueueDrop, this));
    queue_->TraceConnectWithoutContext("Mark", MakeCallback(&DirectionTruth::OnMark, this));
}

void
DirectionTruth::OnEnqueue(Ptr<const QueueDiscItem> item)
{
    AdvanceQueue();
    const PacketFacts facts = Describe(item->GetPacket());
    ++counts_.packets_in;
    counts_.bytes_in += facts.ip_length;
    Log(kEnqueue, facts, queue_packets_ - 1, Time(0));
}

void
DirectionTruth::OnQueueRefusal(Ptr<const QueueDiscItem> item, const char* reason)
{
    ++counts_.packets_in;
    counts_.bytes_in += item->GetPacket()->GetSize();
    OnQueueDrop(item, reason);
}

void
DirectionTruth::OnQueueDrop(Ptr<const QueueDiscItem> item, const char*)
{
    ++counts_.dropped_queue;
    Log(kDropQueue, Describe(item->GetPacket()), queue_->GetNPackets(), Time(0));
}

void
DirectionTruth::OnMark(Ptr<const QueueDiscItem> item, const char*)
{
    ++counts_.impaired[kMark.counter];
    Log(kMark, Describe(item->GetPacket()), queue_->GetNPackets(), Time(0));
}

void
DirectionTruth::OnDequeue(Ptr<const QueueDiscItem>)
{
    AdvanceQueue();
}

void
DirectionTruth::OnTransmitted(const Passage& passage)
{
    const PacketFacts facts = Describe(passage.packet);
    for (const PacketEvent change : passage.changes)
    {
        ++counts_.impaired[change.counter];
        Log(change, facts, queue_->GetNPackets(), Time(0));
    }
    if (passage.dropped)
    {
        ++counts_.impaired[passage.dropped->counter];
        Log(*passage.dropped, facts, queue_->GetNPackets(), Time(0));
        return;
    }
    ++propagating_;
}

void
DirectionTruth::OnLost(Ptr<const Packet> packet, bool handover)
{
    --propagating_;
    ++(handover ? counts_.impaired[kDropHandover.counter] : counts_.dropped_loss);
    Log(handover ? kDropHandover : kDropLoss, Describe(packet), queue_->GetNPackets(), Time(0));
}

void
DirectionTruth::OnSent(const PacketFacts& facts, Time lateness, bool taken)
{
    --propagating_;
    if (!taken)
    {
        ++counts_.send_errors;
        return;
    }
    ++counts_.packets_out;
    counts_.bytes_out += facts.ip_length;
    Log(kDeliver, facts, queue_->GetNPackets(), lateness);
}

void
DirectionTruth::AdvanceQueue()
{
    const Time now = Simulator::Now();
    // A packet that arrives at an idle transmitter leaves the queue at the same time. Such moments of zero duration don't count.
    if (now > queue_changed_)
    {
        queue_packet_seconds_ += queue_packets_ * (now - queue_changed_).GetSeconds();
        counts_.queue_max_packets = std::max(counts_.queue_max_packets, queue_packets_);
        queue_changed_ = now;
    }
    queue_packets_ = queue_->GetNPackets();
}

DirectionCounts
DirectionTruth::Counts() const
{
    DirectionCounts counts = counts_;
    const Time now = Simulator::Now();
    counts.busy_s = transmitter_->Busy().GetSeconds();
    if (now > queue_changed_)
    {
        counts.queue_max_packets = std::max(counts.queue_max_packets, queue_packets_);
    }
    if (now.IsStrictlyPositive())
    {
        const double last = queue_packets_ * (now - queue_changed_).GetSeconds();
        counts.queue_mean_packets = (queue_packet_seconds_ + last) / now.GetSeconds();
    }
    counts.in_flight = queue_->GetNPackets() + (transmitter_->Transmitting() ? 1 : 0) + propagating_;
    return counts;
}

void
DirectionTruth::Log(const PacketEvent& event, const PacketFacts& facts, uint32_t queue_packets, Time lateness)
{
    if (log_ == nullptr)
    {
        return;
    }
    PacketRecord record{};
    record.time_ns = static_cast<uint64_t>(Simulator::Now().GetNanoSeconds());
    record.id = facts.id;
    record.lateness_ns = static_cast<uint32_t>(std::clamp<int64_t>(lateness.GetNanoSeconds(), 0, UINT32_MAX));
    record.direction = static_cast<uint8_t>(direction_);
    record.event = event.number;
    record.queue_packets = static_cast<uint16_t>(std::min<uint32_t>(queue_packets, UINT16_MAX));
    record.ip_length = facts.ip_length;
    record.transport_checksum = facts.transport_checksum;
    log_->Append(record);
}

}  // namespace bentpipe
