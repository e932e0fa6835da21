#include "dual_queue.h"

#include "ns3/drop-tail-queue.h"

#include <algorithm>

namespace bentpipe
{

namespace
{

constexpr size_t kClassic = 0;
constexpr size_t kL4s = 1;
constexpr uint8_t kEcn = 0x03;
constexpr uint8_t kEct1 = 0x01;  // ECT(1) is 01 and CE is 11 (RFC 9331 §5.1)

// The defaults of RFC 9332, appendix A.1.
constexpr double kTarget = 0.015;         // s
constexpr double kUpdate = 0.016;         // s
constexpr double kAlpha = 0.16;           // Hz
constexpr double kBeta = 3.2;             // Hz
constexpr double kCoupling = 2.0;         // k
constexpr double kLargestBase = 0.5;      // p_Cmax = (1/k)^2
constexpr double kRampBegins = 0.0008;    // s
constexpr double kRampLength = 0.0004;    // s
constexpr int64_t kClassicWeight = 10;    // of 100
constexpr int kMostUpdates = 1000;        // after a longer pause p' is 0 anyway

constexpr const char* kOverload = "Overload drop";
constexpr const char* kClassicDrop = "Classic drop";
constexpr const char* kMarked = "Mark";

}  // namespace

NS_OBJECT_ENSURE_REGISTERED(DualQueue);

ns3::TypeId
DualQueue::GetTypeId()
{
    static const ns3::TypeId type =
        ns3::TypeId("bentpipe::DualQueue").SetParent<ns3::QueueDisc>().AddConstructor<DualQueue>();
    return type;
}

DualQueue::DualQueue()
    : ns3::QueueDisc(ns3::QueueDiscSizePolicy::MULTIPLE_QUEUES, ns3::QueueSizeUnit::PACKETS),
      random_(ns3::CreateObject<ns3::UniformRandomVariable>())
{
}

void
DualQueue::AssignStream(int64_t stream)
{
    random_->SetStream(stream);
}

bool
DualQueue::CheckConfig()
{
    return true;
}

void
DualQueue::InitializeParams()
{
    for (size_t count = 0; count < 2; ++count)
    {
        const auto queue = ns3::CreateObject<ns3::DropTailQueue<ns3::QueueDiscItem>>();
        queue->SetMaxSize(GetMaxSize());
        AddInternalQueue(queue);
    }
}

bool
DualQueue::DoEnqueue(ns3::Ptr<ns3::QueueDiscItem> item)
{
    Update();
    if (GetNPackets() >= GetMaxSize().GetValue())
    {
        DropBeforeEnqueue(item, kOverload);
        return false;
    }
    uint8_t field = 0;
    item->GetUint8Value(ns3::QueueItem::IP_DSFIELD, field);
    return GetInternalQueue((field & kEct1) != 0 ? kL4s : kClassic)->Enqueue(item);
}

ns3::Ptr<ns3::QueueDiscItem>
DualQueue::DoDequeue()
{
    Update();
    while (GetNPackets() > 0)
    {
        const bool both = !GetInternalQueue(kClassic)->IsEmpty() && !GetInternalQueue(kL4s)->IsEmpty();
        const bool l4s = both ? credit_ <= 0 : GetInternalQueue(kClassic)->IsEmpty();
        const double sojourn = Sojourn(l4s ? kL4s : kClassic);
        const auto item = GetInternalQueue(l4s ? kL4s : kClassic)->Dequeue();
        if (both)
        {
            credit_ += item->GetSize() * (l4s ? kClassicWeight : kClassicWeight - 100);
        }
        const double classic = base_ * base_;
        if (!l4s)
        {
            if (Chosen(classic) && !Mark(item, kMarked))
            {
                DropAfterDequeue(item, kClassicDrop);
                continue;
            }
            return item;
        }
        // In overload marks no longer help, so packets of both queues are dropped with the same probability (RFC 9332 §4.1).
        if (base_ >= kLargestBase && Chosen(classic))
        {
            DropAfterDequeue(item, kOverload);
            continue;
        }
        // A single packet is no queue (Th_len of the RFC), which matters on slow links.
        const double ramp =
            GetInternalQueue(kL4s)->IsEmpty() ? 0.0 : std::clamp((sojourn - kRampBegins) / kRampLength, 0.0, 1.0);
        if (Chosen(std::max(ramp, std::min(1.0, kCoupling * base_))))
        {
            Mark(item, kMarked);
        }
        return item;
    }
    return nullptr;
}

/// Computes p' of all periods that have ended. It needs no timer of its own, so that an idle link stays idle.
void
DualQueue::Update()
{
    const ns3::Time now = ns3::Simulator::Now();
    const ns3::Time period = ns3::Seconds(kUpdate);
    for (int updates = 0; next_update_ <= now && updates < kMostUpdates; ++updates)
    {
        const double delay = std::max(Sojourn(kClassic), Sojourn(kL4s));
        base_ = std::clamp(base_ + kAlpha * (delay - kTarget) + kBeta * (delay - previous_), 0.0, kLargestBase);
        previous_ = delay;
        next_update_ += period;
    }
    next_update_ = std::max(next_update_, now);
}

double
DualQueue::Sojourn(size_t queue) const
{
    const auto head = GetInternalQueue(queue)->Peek();
    return head != nullptr ? (ns3::Simulator::Now() - head->GetTimeStamp()).GetSeconds() : 0.0;
}

bool
DualQueue::Chosen(double probability)
{
    return random_->GetValue(0.0, 1.0) < probability;
}

}  // namespace bentpipe
