#include "fields.h"

#include "user_error.h"

#include <algorithm>
#include <utility>

namespace bentpipe
{

namespace
{

constexpr size_t kShownBytes = 60;  // the most bytes of a value that a sentence shows

std::string
Listed(const auto& names, const std::string& last)
{
    std::string text;
    size_t left = names.size();
    for (const std::string& name : names)
    {
        --left;
        text += name + (left == 0 ? "" : left == 1 ? last : ", ");
    }
    return text;
}

}  // namespace

Value::Value(nlohmann::json& json, std::string name)
    : json_(json),
      name_(std::move(name))
{
}

void
Value::Reject(const std::string& expected) const
{
    std::string shown = json_.dump();
    if (shown.size() > kShownBytes)
    {
        shown = shown.substr(0, kShownBytes) + "...";
    }
    throw UserError((name_.empty() ? "The document" : name_) + " must be " + expected + ", not " + shown + ".");
}

double
Value::Real(double max, const std::string& expected) const
{
    if (!json_.is_number() || json_.get<double>() < 0.0 || json_.get<double>() > max)
    {
        Reject(expected);
    }
    return json_.get<double>();
}

double
Value::Fraction() const
{
    return Real(1.0, "a fraction from 0 to 1");
}

double
Value::Seconds(double max) const
{
    return Real(max, "seconds from 0 to " + std::to_string(static_cast<uint64_t>(max)));
}

uint64_t
Value::Whole(uint64_t min, uint64_t max, const std::string& unit) const
{
    if (!json_.is_number_unsigned() || json_.get<uint64_t>() < min || json_.get<uint64_t>() > max)
    {
        Reject("a whole number" + unit + " from " + std::to_string(min) + " to " + std::to_string(max));
    }
    return json_.get<uint64_t>();
}

bool
Value::Flag() const
{
    if (!json_.is_boolean())
    {
        Reject("true or false");
    }
    return json_.get<bool>();
}

std::string
Value::Text(const std::string& expected) const
{
    if (!json_.is_string() || json_.get_ref<const std::string&>().empty())
    {
        Reject(expected);
    }
    return json_.get<std::string>();
}

std::string
Value::Choice(const std::vector<std::string>& choices) const
{
    const std::string expected = Listed(choices, " or ");
    const std::string text = Text(expected);
    if (std::find(choices.begin(), choices.end(), text) == choices.end())
    {
        Reject(expected);
    }
    return text;
}

std::vector<Value>
Value::Items(const std::string& expected) const
{
    if (!json_.is_array())
    {
        Reject(expected);
    }
    std::vector<Value> items;
    for (size_t index = 0; index < json_.size(); ++index)
    {
        items.emplace_back(json_[index], name_ + "[" + std::to_string(index) + "]");
    }
    return items;
}

std::pair<Value, Value>
Value::Pair(const std::string& expected) const
{
    const std::vector<Value> items = Items(expected);
    if (items.size() != 2)
    {
        Reject(expected);
    }
    return {items[0], items[1]};
}

Fields::Fields(Value object)
    : object_(std::move(object))
{
    if (!object_.json_.is_object())
    {
        object_.Reject("a JSON object");
    }
}

Value
Fields::Need(const std::string& key)
{
    const auto found = Find(key);
    if (!found)
    {
        throw UserError(NameOf(key) + " is missing.");
    }
    return *found;
}

Value
Fields::Get(const std::string& key, const nlohmann::json& fallback)
{
    if (const auto found = Find(key))
    {
        return *found;
    }
    object_.json_[key] = fallback;
    return {object_.json_[key], NameOf(key)};
}

std::optional<Value>
Fields::Find(const std::string& key)
{
    known_.insert(key);
    const auto found = object_.json_.find(key);
    if (found == object_.json_.end() || found->is_null())
    {
        object_.json_[key] = nullptr;
        return std::nullopt;
    }
    return Value(*found, NameOf(key));
}

void
Fields::RefuseOthers() const
{
    for (const auto& item : object_.json_.items())
    {
        if (!known_.contains(item.key()))
        {
            const std::string where = object_.name_.empty() ? "the document" : object_.name_;
            throw UserError("There is no field '" + item.key() + "' in " + where + "; its fields are " +
                            Listed(known_, " and ") + ".");
        }
    }
}

std::string
Fields::NameOf(const std::string& key) const
{
    return object_.name_.empty() ? key : object_.name_ + "." + key;
}

}  // namespace bentpipe
