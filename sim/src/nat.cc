#include "nat.h"

namespace bentpipe
{

namespace
{

constexpr uint32_t kFirstPort = 1024;
constexpr uint32_t kLastPort = 65'535;
// The NAT uses the hosts 101 to 200 of the client's network. The simulator and the client have other addresses (contract.md).
constexpr uint8_t kFirstHost = 101;
constexpr uint64_t kHosts = 100;

}  // namespace

std::optional<Rebinding>
ReadRebinding(Fields& both)
{
    const auto value = both.Find("rebinding");
    if (!value)
    {
        return std::nullopt;
    }
    Fields fields(*value);
    Rebinding rebinding;
    rebinding.address = fields.Need("what").Choice({"port", "address"}) == "address";
    rebinding.first_s = fields.Need("first").Seconds(kMaxTime);
    rebinding.every_s = fields.Get("every", 0.0).Seconds(kMaxTime);
    fields.RefuseOthers();
    return rebinding;
}

class Nat::Out : public Impairment
{
  public:
    explicit Out(Nat& nat)
        : nat_(nat)
    {
    }

    void
    Apply(Passage& passage) override
    {
        const uint64_t epoch = nat_.Epoch();
        if (epoch == 0)
        {
            return;
        }
        auto udp = UdpPacket::Parse(passage.packet);
        if (!udp)
        {
            return;
        }
        const auto& [outer, number] = nat_.Mapping(udp->Source(), epoch);
        ++nat_.mappings_[number].packets;
        udp->SetSource(outer);
        passage.packet = udp->Build();
        passage.changes.push_back(kTranslate);
    }

  private:
    Nat& nat_;
};

class Nat::In : public Impairment
{
  public:
    explicit In(Nat& nat)
        : nat_(nat)
    {
    }

    void
    Apply(Passage& passage) override
    {
        if (nat_.inner_.empty())
        {
            return;
        }
        auto udp = UdpPacket::Parse(passage.packet);
        const auto inner = udp ? nat_.inner_.find(udp->Destination()) : nat_.inner_.end();
        if (inner == nat_.inner_.end())
        {
            return;
        }
        udp->SetDestination(inner->second);
        passage.packet = udp->Build();
        passage.changes.push_back(kTranslate);
    }

  private:
    Nat& nat_;
};

Nat::Nat(const Rebinding& rebinding, const Anchor& anchor, int64_t stream)
    : rebinding_(rebinding),
      anchor_(anchor),
      random_(ns3::CreateObject<ns3::UniformRandomVariable>())
{
    random_->SetStream(stream);
}

std::unique_ptr<Impairment>
Nat::Outgoing()
{
    return std::make_unique<Out>(*this);
}

std::unique_ptr<Impairment>
Nat::Incoming()
{
    return std::make_unique<In>(*this);
}

const std::vector<MappingTruth>&
Nat::Mappings() const
{
    return mappings_;
}

uint64_t
Nat::Epoch() const
{
    const auto since = anchor_.SinceFirstOneRtt();
    if (!since || *since < rebinding_.first_s)
    {
        return 0;
    }
    return rebinding_.every_s > 0.0 ? 1 + static_cast<uint64_t>((*since - rebinding_.first_s) / rebinding_.every_s) : 1;
}

const std::pair<UdpEndpoint, size_t>&
Nat::Mapping(const UdpEndpoint& inner, uint64_t epoch)
{
    const auto known = outer_.find({inner, epoch});
    if (known != outer_.end())
    {
        return known->second;
    }
    const UdpEndpoint outer = Choose(inner, epoch);
    inner_[outer] = inner;
    mappings_.push_back({ns3::Simulator::Now().GetSeconds(), ToText(inner), ToText(outer), 0});
    return outer_[{inner, epoch}] = {outer, mappings_.size() - 1};
}

UdpEndpoint
Nat::Choose(const UdpEndpoint& inner, uint64_t epoch)
{
    UdpEndpoint outer = inner;
    if (rebinding_.address)
    {
        outer.address[outer.v6 ? 15 : 3] = static_cast<uint8_t>(kFirstHost + (epoch - 1) % kHosts);
        return outer;
    }
    do
    {
        outer.port = static_cast<uint16_t>(random_->GetInteger(kFirstPort, kLastPort));
    } while (outer == inner || inner_.contains(outer));
    return outer;
}

}  // namespace bentpipe
