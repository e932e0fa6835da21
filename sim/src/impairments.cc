#include "impairments.h"

#include "packet_edit.h"
#include "packet_facts.h"

#include <algorithm>

#include <netinet/in.h>

namespace bentpipe
{

namespace
{

constexpr uint8_t kNotEct = 0;
constexpr uint8_t kCe = 3;  // RFC 3168 §5

bool
IsUdp(const Passage& passage)
{
    return Describe(passage.packet).protocol == IPPROTO_UDP;
}

ns3::Ptr<ns3::UniformRandomVariable>
MakeRandom(int64_t stream)
{
    const auto random = ns3::CreateObject<ns3::UniformRandomVariable>();
    random->SetStream(stream);
    return random;
}

class OutageImpairment : public Impairment
{
  public:
    OutageImpairment(const Outage& outage, const Anchor& anchor)
        : outage_(outage),
          anchor_(anchor)
    {
    }

    void
    Apply(Passage& passage) override
    {
        const auto since = anchor_.SinceFirstOneRtt();
        if (since && *since >= outage_.start_s && *since < outage_.start_s + outage_.duration_s && IsUdp(passage))
        {
            passage.dropped = PacketEvent::kDropOutage;
        }
    }

  private:
    Outage outage_;
    const Anchor& anchor_;
};

class MtuFallImpairment : public Impairment
{
  public:
    MtuFallImpairment(const MtuFall& fall, const Anchor& anchor)
        : fall_(fall),
          anchor_(anchor)
    {
    }

    void
    Apply(Passage& passage) override
    {
        const auto since = anchor_.SinceFirstOneRtt();
        if (since && *since >= fall_.start_s && passage.packet->GetSize() > fall_.bytes && IsUdp(passage))
        {
            passage.dropped = PacketEvent::kDropMtu;
        }
    }

  private:
    MtuFall fall_;
    const Anchor& anchor_;
};

class Marking : public Impairment
{
  public:
    Marking(uint32_t packets, ns3::Ptr<ns3::DropTailQueue<ns3::Packet>> queue)
        : packets_(packets),
          queue_(queue)
    {
    }

    void
    Apply(Passage& passage) override
    {
        if (queue_->GetNPackets() < packets_)
        {
            return;
        }
        auto udp = UdpPacket::Parse(passage.packet);
        if (udp && udp->Ecn() != kNotEct && udp->Ecn() != kCe)
        {
            udp->SetEcn(kCe);
            passage.packet = udp->Build();
            passage.changes.push_back(PacketEvent::kMark);
        }
    }

  private:
    uint32_t packets_;
    ns3::Ptr<ns3::DropTailQueue<ns3::Packet>> queue_;
};

class Corruption : public Impairment
{
  public:
    Corruption(double probability, uint32_t burst, int64_t stream)
        : probability_(probability),
          burst_(burst),
          random_(MakeRandom(stream))
    {
    }

    void
    Apply(Passage& passage) override
    {
        auto udp = UdpPacket::Parse(passage.packet);
        if (!udp || udp->PayloadBytes() == 0)
        {
            return;
        }
        // Three numbers for every packet, so that a seed's pattern doesn't depend on what was corrupted before.
        const bool hit = random_->GetValue(0.0, 1.0) < probability_;
        const auto offset = random_->GetInteger(0, static_cast<uint32_t>(udp->PayloadBytes() - 1));
        const auto mask = static_cast<uint8_t>(random_->GetInteger(1, 255));
        if (!hit || (burst_ > 0 && run_ >= burst_))
        {
            run_ = 0;
            return;
        }
        ++run_;
        udp->Corrupt(offset, mask);
        passage.packet = udp->Build();
        passage.changes.push_back(PacketEvent::kCorrupt);
    }

  private:
    double probability_;
    uint32_t burst_;
    uint32_t run_ = 0;
    ns3::Ptr<ns3::UniformRandomVariable> random_;
};

class Jitter : public Impairment
{
  public:
    Jitter(double seconds, bool overtaking, int64_t stream)
        : seconds_(seconds),
          overtaking_(overtaking),
          random_(MakeRandom(stream))
    {
    }

    void
    Apply(Passage& passage) override
    {
        passage.delay += ns3::Seconds(random_->GetValue(0.0, seconds_));
        passage.apart = passage.apart || overtaking_;
    }

  private:
    double seconds_;
    bool overtaking_;
    ns3::Ptr<ns3::UniformRandomVariable> random_;
};

class Reordering : public Impairment
{
  public:
    Reordering(double probability, double seconds, int64_t stream)
        : probability_(probability),
          seconds_(seconds),
          random_(MakeRandom(stream))
    {
    }

    void
    Apply(Passage& passage) override
    {
        if (IsUdp(passage) && random_->GetValue(0.0, 1.0) < probability_)
        {
            passage.delay += ns3::Seconds(seconds_);
            passage.apart = true;
            passage.changes.push_back(PacketEvent::kHoldBack);
        }
    }

  private:
    double probability_;
    double seconds_;
    ns3::Ptr<ns3::UniformRandomVariable> random_;
};

}  // namespace

std::vector<std::unique_ptr<Impairment>>
MakeImpairments(const LinkParameters& link,
                const Parameters& path,
                const Anchor& anchor,
                ns3::Ptr<ns3::DropTailQueue<ns3::Packet>> queue,
                int64_t first_stream)
{
    std::vector<std::unique_ptr<Impairment>> made;
    if (path.outage)
    {
        made.push_back(std::make_unique<OutageImpairment>(*path.outage, anchor));
    }
    if (path.mtu_fall)
    {
        made.push_back(std::make_unique<MtuFallImpairment>(*path.mtu_fall, anchor));
    }
    if (link.mark_packets > 0)
    {
        made.push_back(std::make_unique<Marking>(link.mark_packets, queue));
    }
    if (link.corruption > 0.0)
    {
        made.push_back(std::make_unique<Corruption>(link.corruption, link.burst, first_stream));
    }
    if (link.jitter_s > 0.0)
    {
        made.push_back(std::make_unique<Jitter>(link.jitter_s, path.overtaking, first_stream + 1));
    }
    if (link.reorder > 0.0)
    {
        made.push_back(std::make_unique<Reordering>(link.reorder, link.reorder_delay_s, first_stream + 2));
    }
    return made;
}

}  // namespace bentpipe
