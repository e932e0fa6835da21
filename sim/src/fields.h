#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace bentpipe
{

constexpr double kMaxDelay = 60.0;     // s
constexpr double kMaxTime = 86'400.0;  // s

/// One value of the link's document. It is checked when it is read. A wrong value is a UserError that names the field.
class Value
{
  public:
    /// `json` must outlive the value. `name`: the name in sentences, such as `forward.delay`; empty for the whole document.
    Value(nlohmann::json& json, std::string name);

    double Fraction() const;            ///< 0 to 1
    double Seconds(double max) const;   ///< 0 to `max`
    /// A whole number. `unit`: the unit in sentences, such as ` of bit/s`.
    uint64_t Whole(uint64_t min, uint64_t max, const std::string& unit) const;
    bool Flag() const;
    std::string Text(const std::string& expected) const;  ///< not empty
    std::string Choice(const std::vector<std::string>& choices) const;
    std::vector<Value> Items(const std::string& expected) const;
    /// The two items of an array of two.
    std::pair<Value, Value> Pair(const std::string& expected) const;

    /// Throws the UserError "NAME must be EXPECTED, not VALUE."
    [[noreturn]] void Reject(const std::string& expected) const;

  private:
    friend class Fields;
    double Real(double max, const std::string& expected) const;

    nlohmann::json& json_;
    std::string name_;
};

/// The fields of an object of the link's document. A field that is absent, or null, gets its default.
class Fields
{
  public:
    explicit Fields(Value object);

    Value Need(const std::string& key);
    Value Get(const std::string& key, const nlohmann::json& fallback);
    std::optional<Value> Find(const std::string& key);

    /// Throws UserError when the object has a field that was not read.
    void RefuseOthers() const;

  private:
    std::string NameOf(const std::string& key) const;

    Value object_;
    std::set<std::string> known_;
};

}  // namespace bentpipe
